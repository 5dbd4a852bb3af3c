/* The counts of a run: totals, and by source line. */
#include "simt.h"
#include "../backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SITES = 4096 };

static SiteCounts sites[MAX_SITES];
static int site_count;

void profile_add(const SiteCounts *counts) /* the caller holds the observer's lock */
{
    int i = 0;
    while (i < site_count && (sites[i].pc != counts->pc || sites[i].kind != counts->kind)) i++;
    if (i == MAX_SITES) return;
    if (i == site_count) {
        sites[site_count++] = *counts;
        return;
    }
    sites[i].requests += counts->requests;
    sites[i].bytes += counts->bytes;
    sites[i].sectors += counts->sectors;
    sites[i].wavefronts += counts->wavefronts;
    sites[i].excess += counts->excess;
}

static void add(Counters *c, const SiteCounts *s)
{
    const int space = s->kind / 8, access = s->kind % 8;
    const int is_store = access == ACCESS_STORE || access == ACCESS_ASYNC_STORE;
    if (space == 0) {
        *(is_store ? &c->store_requests : &c->load_requests) += s->requests;
        *(is_store ? &c->store_sectors : &c->load_sectors) += s->sectors;
        *(is_store ? &c->store_bytes : &c->load_bytes) += s->bytes;
    } else if (space == 1 && access == ACCESS_ASYNC_STORE) {
        c->cp_async += s->requests; /* here, where those that only fill with zeros are seen too */
    } else if (space == 1) {
        *(is_store ? &c->shared_store_requests : &c->shared_load_requests) += s->requests;
        *(is_store ? &c->shared_store_wavefronts : &c->shared_load_wavefronts) += s->wavefronts;
        c->shared_excess += s->excess;
    } else if (space == 2) {
        if (access == MEET_SYNCTHREADS) c->barriers += s->requests;
        if (access == MEET_SHFL) c->shuffles += s->requests;
        if (access == MEET_LDMATRIX) c->ldmatrix += s->requests;
        if (access == MEET_MMA) c->mma += s->requests;
    }
}

Counters backend_counters(void)
{
    Counters counters;
    memset(&counters, 0, sizeof counters);
    for (int i = 0; i < site_count; i++) add(&counters, &sites[i]);
    counters.errors = report_count();
    counters.observed = simt_observing();
    return counters;
}

void backend_counters_reset(void)
{
    site_count = 0;
}

/* ---- by source line ---- */

typedef struct Line {
    const char *path;
    int number;
    Counters counters;
    int64_t cost; /* sectors and wavefronts: what the memory system does for it */
} Line;

static int by_place(const void *a, const void *b)
{
    const Line *x = a, *y = b;
    const int order = strcmp(x->path, y->path);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

static int by_cost(const void *a, const void *b)
{
    const Line *x = a, *y = b;
    return x->cost == y->cost ? by_place(a, b) : x->cost < y->cost ? 1 : -1;
}

static int collect_lines(Line *lines)
{
    const void *pcs[MAX_SITES];
    int count = 0;
    for (int i = 0; i < site_count; i++) pcs[i] = sites[i].pc;
    report_resolve(pcs, site_count);
    for (int i = 0; i < site_count; i++) {
        int number = 0, l = 0;
        const char *path = report_source(sites[i].pc, &number);
        if (!path) path = "(unknown)";
        while (l < count && (lines[l].number != number || strcmp(lines[l].path, path))) l++;
        if (l == count) {
            memset(&lines[l], 0, sizeof lines[l]);
            lines[count].path = path;
            lines[count++].number = number;
        }
        add(&lines[l].counters, &sites[i]);
    }
    for (int l = 0; l < count; l++) {
        const Counters *c = &lines[l].counters;
        lines[l].cost = c->load_sectors + c->store_sectors + c->shared_load_wavefronts + c->shared_store_wavefronts;
    }
    return count;
}

static void source_line(const char *path, int number, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    char line[512] = "";
    for (int i = 0; file && i < number && fgets(line, sizeof line, file); i++) {}
    if (file) fclose(file);
    line[strcspn(line, "\n")] = 0;
    snprintf(text, size, "%.*s", (int)size - 1, line + strspn(line, " "));
}

void profile_source_text(const void *pc, char *text, size_t size)
{
    int number;
    const char *path = report_source(pc, &number);
    if (path) source_line(path, number, text, size);
}

static void cell(FILE *out, int width, int64_t count)
{
    if (count) fprintf(out, " %*lld", width, (long long)count);
    else fprintf(out, " %*s", width, ".");
}

void backend_profile(FILE *out, int cost_first)
{
    Line *lines = malloc(MAX_SITES * sizeof *lines);
    if (!lines) return;
    const int count = collect_lines(lines);
    int64_t largest = 1;
    for (int i = 0; i < count; i++)
        if (lines[i].cost > largest) largest = lines[i].cost;
    qsort(lines, (size_t)count, sizeof *lines, cost_first ? by_cost : by_place);
    fprintf(out, "\n%5s %9s %9s %6s %9s %9s %8s %-10s source\n", "line", "global", "sectors", "s/req", "shared", "wavefr.",
            "excess", "cost");
    for (int i = 0; i < count; i++) {
        const Counters *c = &lines[i].counters;
        const int64_t requests = c->load_requests + c->store_requests, sectors = c->load_sectors + c->store_sectors;
        char text[80], bar[11] = "";
        source_line(lines[i].path, lines[i].number, text, sizeof text);
        memset(bar, '#', (size_t)((lines[i].cost * 10 + largest - 1) / largest));
        fprintf(out, "%5d", lines[i].number);
        cell(out, 9, requests);
        cell(out, 9, sectors);
        if (requests) fprintf(out, " %6.1f", (double)sectors / (double)requests);
        else fprintf(out, " %6s", ".");
        cell(out, 9, c->shared_load_requests + c->shared_store_requests);
        cell(out, 9, c->shared_load_wavefronts + c->shared_store_wavefronts);
        cell(out, 8, c->shared_excess);
        fprintf(out, " %-10s %s", bar, text);
        if (c->mma) fprintf(out, "  [mma %lld]", (long long)c->mma);
        if (c->ldmatrix) fprintf(out, "  [ldmatrix %lld]", (long long)c->ldmatrix);
        if (c->shuffles) fprintf(out, "  [shuffles %lld]", (long long)c->shuffles);
        if (c->barriers) fprintf(out, "  [barriers %lld]", (long long)c->barriers);
        fprintf(out, "\n");
    }
    free(lines);
}

void backend_profile_json(FILE *out)
{
    Line *lines = malloc(MAX_SITES * sizeof *lines);
    const int count = lines ? collect_lines(lines) : 0;
    if (lines) qsort(lines, (size_t)count, sizeof *lines, by_place);
    fprintf(out, "[");
    for (int i = 0; i < count; i++) {
        const Counters *c = &lines[i].counters;
        const char *name = strrchr(lines[i].path, '/');
        fprintf(out, "%s\n    {\"file\": \"%s\", \"line\": %d, \"requests\": %lld, \"sectors\": %lld, \"shared_requests\": %lld, "
                "\"wavefronts\": %lld, \"excess\": %lld, \"cp_async\": %lld, \"ldmatrix\": %lld, \"mma\": %lld, "
                "\"shuffles\": %lld, \"barriers\": %lld}", i ? "," : "", name ? name + 1 : lines[i].path, lines[i].number,
                (long long)(c->load_requests + c->store_requests), (long long)(c->load_sectors + c->store_sectors),
                (long long)(c->shared_load_requests + c->shared_store_requests),
                (long long)(c->shared_load_wavefronts + c->shared_store_wavefronts), (long long)c->shared_excess,
                (long long)c->cp_async, (long long)c->ldmatrix, (long long)c->mma, (long long)c->shuffles,
                (long long)c->barriers);
    }
    fprintf(out, "]");
    free(lines);
}
