/* Tells what came of a run: a short report for people, one JSON object, one line of the table of all steps. */
#include "result.h"

#include <string.h>
#include <unistd.h>

static const double SECTOR_MB = 32e-6; /* global memory moves in sectors of 32 bytes */

/* Each with two spaces after it, as the rest of its line. */
static void print_variants(const Run *run)
{
    const AttentionParams *p = &run->host;
    if (run->options.causal) printf("causal  ");
    if (p->window_left >= 0 || (p->window_right >= 0 && !run->options.causal))
        printf("window %d,%d  ", p->window_left, p->window_right);
    if (p->block_causal) printf("block-causal %d  ", p->block_causal);
    if (p->softcap > 0) printf("softcap %g  ", p->softcap);
    if (p->sinks) printf("sinks  ");
    if (p->block_mask) printf("block mask of %d  ", p->mask_block);
    if (p->cu_seqlens_q) printf("varlen, %lld rows  ", (long long)run->q_rows);
    if (p->block_table) printf("pages of %d  ", p->page_size);
    if (p->kv_lens && !p->block_table) printf("kv-lens  ");
    if (p->num_splits) printf("splits %d  ", p->num_splits);
}

void print_problem(const Run *run)
{
    const AttentionParams *p = &run->host;
    const Options *options = &run->options;
    printf("%s  %s  B=%d H=%d", run->step->name, run->step->bf16 ? "bf16" : "f16", p->batch, p->heads);
    if (p->heads != p->kv_heads) printf(" Hkv=%d", p->kv_heads);
    printf(" Sq=%d Skv=%d D=%d%s  scale %g  ", p->seq_q, p->seq_kv, p->head_dim, options->bshd ? "  [B,S,H,D]" : "",
           p->scale);
    print_variants(run);
    if (options->q)
        printf("%s %s %s\n", options->q, options->k, options->v);
    else
        printf("seed %llu\n", (unsigned long long)options->seed);
    printf("backend  %s\n", run->info.name);
    fflush(stdout); /* before anything that the backend may say on stderr */
}

/* Writes "[b,h,s,d]", the place of an offset in O, or "[b,h,s]" in LSE; of packed ones "[t,h,d]" or "[h,t]". */
static const char *place(const Run *run, int in_o, int64_t index, char text[96])
{
    if (index < 0) return "none"; /* nothing finite was compared */
    const AttentionParams *p = &run->host;
    const int bshd = in_o && run->options.bshd;
    const int64_t d = in_o ? index % p->head_dim : 0, r = in_o ? index / p->head_dim : index;
    if (p->cu_seqlens_q && in_o)
        snprintf(text, 96, "[%lld,%lld,%lld]", (long long)(r / p->heads), (long long)(r % p->heads), (long long)d);
    else if (p->cu_seqlens_q)
        snprintf(text, 96, "[%lld,%lld]", (long long)(r / run->q_rows), (long long)(r % run->q_rows));
    if (p->cu_seqlens_q) return text;
    const int64_t inner = bshd ? p->heads : p->seq_q, outer = bshd ? p->seq_q : p->heads;
    const int64_t row = bshd ? r / inner % outer : r % inner, head = bshd ? r % inner : r / inner % outer;
    const int length =
        snprintf(text, 96, "[%lld,%lld,%lld", (long long)(r / inner / outer), (long long)head, (long long)row);
    if (in_o)
        snprintf(text + length, 96 - (size_t)length, ",%lld]", (long long)d);
    else
        snprintf(text + length, 96 - (size_t)length, "]");
    return text;
}

static void print_comparison(const Run *run, const char *label, const Comparison *c, int in_o)
{
    char at[96];
    if (c->index < 0) {
        printf("%-8s no finite value to compare\n", label);
        return;
    }
    printf("%-8s max error %.2e at %s, bound there %.1e", label, c->max_error, place(run, in_o, c->index, at),
           c->bound);
    if (c->worst_ratio < 1e4) printf("   worst error/bound %.2f", c->worst_ratio);
    if (c->not_finite && !c->failures) printf("   %lld values rounded to infinity", (long long)c->not_finite);
    printf("\n");
}

static void print_failure(const Run *run, const char *label, const Comparison *c, int in_o)
{
    char at[96];
    if (!c->failures) return;
    printf("FAIL     %s: %lld of %lld values are outside their bound", label, (long long)c->failures,
           (long long)c->compared);
    if (c->not_finite) printf(", %lld of them NaN or infinite where the reference is not", (long long)c->not_finite);
    if (c->worst_index >= 0) printf("; worst at %s", place(run, in_o, c->worst_index, at));
    printf("\n");
}

void print_report(const Run *run)
{
    const Counters *c = &run->counters;
    const Reference *reference = &run->reference;
    if (!run->options.no_check) {
        if (reference->rows_checked < reference->rows)
            printf("checked  %lld of %lld rows, the first and the last among them\n",
                   (long long)reference->rows_checked, (long long)reference->rows);
        print_comparison(run, "O", &run->o, 1);
        print_comparison(run, "LSE", &run->lse, 0);
        if (run->options.previous_out) print_comparison(run, "O step", &run->o_change, 1);
        if (run->options.previous_lse) print_comparison(run, "LSE step", &run->lse_change, 0);
    }
    if (c->observed && run->options.observe_blocks)
        printf("sampled  at most %d blocks of each kernel were watched: these are their counts\n",
               run->options.observe_blocks);
    if (c->observed) {
        printf(
            "global   loads %lld requests, %lld sectors (%.3f MB moved, %.3f asked); stores %lld, %lld (%.3f, %.3f)\n",
            (long long)c->load_requests, (long long)c->load_sectors, (double)c->load_sectors * SECTOR_MB,
            (double)c->load_bytes * 1e-6, (long long)c->store_requests, (long long)c->store_sectors,
            (double)c->store_sectors * SECTOR_MB, (double)c->store_bytes * 1e-6);
        if (c->shared_load_requests || c->shared_store_requests)
            printf(
                "shared   loads %lld requests, %lld wavefronts; stores %lld, %lld; bank conflicts add %lld of them\n",
                (long long)c->shared_load_requests, (long long)c->shared_load_wavefronts,
                (long long)c->shared_store_requests, (long long)c->shared_store_wavefronts,
                (long long)c->shared_excess);
        printf("warps    mma %lld, ldmatrix %lld, cp.async %lld, shuffles %lld instructions; barriers %lld, counted "
               "once a block\n",
               (long long)c->mma, (long long)c->ldmatrix, (long long)c->cp_async, (long long)c->shuffles,
               (long long)c->barriers);
    }
    if (!isnan(run->time_ms))
        printf("time     %.4f ms (median of %d, L2 %s), %.1f TFLOP/s = 4*%s*D%s / time, K and V at %.2f TB/s\n",
               run->time_ms, run->options.bench, run->options.no_flush ? "not flushed" : "flushed", run->tflops,
               run->host.cu_seqlens_q || run->host.kv_lens ? "H*sum(Sq*Skv)" : "B*H*Sq*Skv",
               run->options.causal ? ", halved for causal," : "", run->tb_per_s);
    if (run->options.no_check) {
        printf("not checked\n");
        return;
    }
    print_failure(run, "O", &run->o, 1);
    print_failure(run, "LSE", &run->lse, 0);
    print_failure(run, "O against the step before", &run->o_change, 1);
    print_failure(run, "LSE against the step before", &run->lse_change, 0);
    if (run->pass) printf("PASS\n");
}

/* "key": "text", */
static void json_text(FILE *file, const char *key, const char *text)
{
    fprintf(file, "  \"%s\": \"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        if ((unsigned char)*text >= ' ') fputc(*text, file);
    }
    fprintf(file, "\",\n");
}

/* "key": number, or null for what JSON cannot say: NaN and infinity */
static void json_number(FILE *file, const char *key, double number, const char *end)
{
    if (isfinite(number))
        fprintf(file, "\"%s\": %.9g%s", key, number, end);
    else
        fprintf(file, "\"%s\": null%s", key, end);
}

static void json_comparison(FILE *file, const char *key, const Comparison *c, int present)
{
    fprintf(file, "  \"%s\": ", key);
    if (!present) {
        fprintf(file, "null,\n");
        return;
    }
    fprintf(file, "{");
    json_number(file, "max_error", c->index < 0 ? NAN : c->max_error, ", ");
    json_number(file, "bound", c->index < 0 ? NAN : c->bound, ", ");
    json_number(file, "worst_ratio", c->worst_ratio < DBL_MAX ? c->worst_ratio : INFINITY, ", ");
    fprintf(file, "\"compared\": %lld, \"failures\": %lld, \"not_finite\": %lld},\n", (long long)c->compared,
            (long long)c->failures, (long long)c->not_finite);
}

static void json_counters(FILE *file, const Counters *c)
{
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        {"load_requests", c->load_requests},
        {"load_sectors", c->load_sectors},
        {"load_bytes", c->load_bytes},
        {"store_requests", c->store_requests},
        {"store_sectors", c->store_sectors},
        {"store_bytes", c->store_bytes},
        {"cp_async", c->cp_async},
        {"shared_load_requests", c->shared_load_requests},
        {"shared_load_wavefronts", c->shared_load_wavefronts},
        {"shared_store_requests", c->shared_store_requests},
        {"shared_store_wavefronts", c->shared_store_wavefronts},
        {"shared_excess", c->shared_excess},
        {"ldmatrix", c->ldmatrix},
        {"mma", c->mma},
        {"shuffles", c->shuffles},
        {"barriers", c->barriers},
    };
    fprintf(file, "  \"counters\": %s", c->observed ? "{" : "null");
    for (size_t i = 0; c->observed && i < sizeof counts / sizeof *counts; i++)
        fprintf(file, "%s\"%s\": %lld", i ? ", " : "", counts[i].name, (long long)counts[i].value);
    fprintf(file, "%s,\n  ", c->observed ? "}" : "");
}

static void json_variants(FILE *file, const Run *run)
{
    static const char *const words[] = {"false", "true"};
    const AttentionParams *p = &run->host;
    fprintf(file, "  \"variants\": {\"causal\": %s, \"window\": [%d, %d], \"block_causal\": %d, ",
            words[run->options.causal], p->window_left, p->window_right, p->block_causal);
    json_number(file, "softcap", p->softcap, ", ");
    fprintf(file, "\"sinks\": %s, \"block_size\": %d, \"varlen\": %s, \"kv_lens\": %s, ", words[p->sinks != NULL],
            p->mask_block, words[p->cu_seqlens_q != NULL], words[p->kv_lens != NULL]);
    fprintf(file, "\"page_size\": %d, \"splits\": %d},\n", p->page_size, p->num_splits);
}

static void print_json(FILE *file, const void *content)
{
    const Run *run = (const Run *)content;
    const Step *step = run->step;
    const Options *options = &run->options;
    const AttentionParams *p = &run->host;
    const int checked = !options->no_check;
    fprintf(file, "{\n");
    json_text(file, "step", step->name);
    json_text(file, "backend", run->info.is_gpu ? "cuda" : "cpu");
    json_text(file, "device", run->info.name);
    json_text(file, "dtype", step->bf16 ? "bf16" : "f16");
    json_text(file, "layout", p->cu_seqlens_q ? "thd" : options->bshd ? "bshd" : "bhsd");
    fprintf(file,
            "  \"batch\": %d, \"heads\": %d, \"kv_heads\": %d, \"seq_q\": %d, \"seq_kv\": %d, \"head_dim\": %d,\n  ",
            p->batch, p->heads, p->kv_heads, p->seq_q, p->seq_kv, p->head_dim);
    json_number(file, "scale", p->scale, ",\n");
    fprintf(file,
            "  \"settings\": {\"head_dim\": %d, \"block_n\": %d, \"warps\": %d, \"row_tiles\": %d, \"stages\": %d},\n",
            step->head_dim, step->block_n, step->warps, step->row_tiles, step->stages);
    if (step->variants) json_variants(file, run);
    fprintf(file, "  \"observe_blocks\": %d,\n", options->observe_blocks);
    fprintf(file, "  \"rows\": %lld, \"rows_checked\": %lld,\n", (long long)run->lse_count,
            (long long)run->reference.rows_checked);
    json_comparison(file, "o", &run->o, checked);
    json_comparison(file, "lse", &run->lse, checked);
    json_comparison(file, "o_previous", &run->o_change, options->previous_out != NULL);
    json_comparison(file, "lse_previous", &run->lse_change, options->previous_lse != NULL);
    json_counters(file, &run->counters);
    if (options->profile) {
        fprintf(file, "\"lines\": ");
        backend_profile_json(file);
        fprintf(file, ",\n  ");
    }
    json_number(file, "time_ms", run->time_ms, ", ");
    json_number(file, "tflops", run->tflops, ", ");
    json_number(file, "tb_per_s", run->tb_per_s, ",\n");
    fprintf(file, "  \"pass\": %s\n}\n", !checked ? "null" : run->pass ? "true" : "false");
}

void write_json(const Run *run)
{
    char error[512];
    if (write_whole(run->options.json, print_json, run, error, sizeof error)) refuse(run->step, "--json %s", error);
}

/* A cell of the table: the number, or - where there is none. */
static void print_cell(FILE *file, int width, int decimals, double number, int present)
{
    if (present)
        fprintf(file, " %*.*f", width, decimals, number);
    else
        fprintf(file, " %*s", width, "-");
}

static void print_error_cell(FILE *file, const Comparison *c, int present)
{
    if (present && c->not_finite)
        fprintf(file, " %8s", c->failures ? "NaN" : "inf");
    else if (present && c->index >= 0)
        fprintf(file, " %8.2e", c->max_error);
    else
        fprintf(file, " %8s", "-");
}

/* One line of the table of all steps; the first run writes its head.  Requests and sectors are those of global loads,
 * MB those of global loads and stores, conflicts the shared memory wavefronts that bank conflicts add. */
void append_row(const Run *run)
{
    const Counters *c = &run->counters;
    const int checked = !run->options.no_check, timed = !isnan(run->time_ms);
    FILE *file = fopen(run->options.row, "a");
    if (!file) refuse(run->step, "--row %s: it cannot be written; name another file", run->options.row);
    fseek(file, 0, SEEK_END);
    const long before = ftell(file);
    if (before == 0) {
        fprintf(file, "%-21s %8s %8s %8s", "step", "O error", "LSE err.", "max |dO|");
        if (run->info.is_gpu)
            fprintf(file, " %10s %9s  check\n", "ms", "TFLOP/s");
        else
            fprintf(file, " %10s %11s %9s %9s %9s  check\n", "requests", "sectors", "MB moved", "MB asked",
                    "conflicts");
    }
    fprintf(file, "%-21s", run->step->name);
    print_error_cell(file, &run->o, checked);
    print_error_cell(file, &run->lse, checked);
    print_error_cell(file, &run->o_change, run->options.previous_out != NULL);
    if (run->info.is_gpu) {
        print_cell(file, 10, 4, run->time_ms, timed);
        print_cell(file, 9, 1, run->tflops, timed);
    } else {
        print_cell(file, 10, 0, (double)c->load_requests, c->observed);
        print_cell(file, 11, 0, (double)c->load_sectors, c->observed);
        print_cell(file, 9, 3, (double)(c->load_sectors + c->store_sectors) * SECTOR_MB, c->observed);
        print_cell(file, 9, 3, (double)(c->load_bytes + c->store_bytes) * 1e-6, c->observed);
        print_cell(file, 9, 0, (double)c->shared_excess, c->observed);
    }
    fprintf(file, "  %s\n", !checked ? "-" : run->pass ? "PASS" : "FAIL");
    const int failed = ferror(file);
    if (fclose(file) || failed) {
        const int whole = truncate(run->options.row, before) == 0; /* no half line for the next to go on with */
        refuse(run->step, "--row %s: writing failed%s; is the disk full?", run->options.row,
               whole ? "" : " within its last line");
    }
}
