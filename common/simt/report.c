/* Errors in kernels, and the source line that a code address belongs to. */
#include "simt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

enum { MAX_PLACES = 4096, MAX_REPORTS = 10, MAX_KEYS = 256 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *pc;
    char text[160];  /* directory/file:line */
    char path[1024]; /* of the file */
    int line;
} places[MAX_PLACES];
static int place_count;

const char *report_base(void)
{
    return (const char *)(uintptr_t)report_base;
}

static int find_place(const void *pc)
{
    int i = 0;
    while (i < place_count && places[i].pc != pc) i++;
    return i;
}

/* Does the file lie in common/ or common/simt/ itself?  The checkout may lie below another folder of that name. */
static int in_common(const char *path)
{
    static const char *const folders[] = {"common/", "common/simt/"};
    const char *file = strrchr(path, '/');
    for (int i = 0; file && i < 2; i++) {
        const int64_t length = (int64_t)strlen(folders[i]), rest = file + 1 - path - length;
        if (rest < 0 || (rest > 0 && path[rest - 1] != '/')) continue;
        if (strncmp(path + rest, folders[i], (size_t)length) == 0) return 1;
    }
    return 0;
}

/* One line of the tool's answer, "path:line": the chain of inlined calls comes innermost first, and the first line that
 * lies neither in common/ nor in the compiler's header of intrinsics is the kernel's own. */
static void take_line(int place, char *line, int *found)
{
    line[strcspn(line, "\n")] = 0;
    char *discriminator = strstr(line, " (discriminator");
    if (discriminator) *discriminator = 0;
#ifdef __APPLE__
    char *open = strrchr(line, '('), *close = strrchr(line, ')');
    if (!open || !close) return;
    *close = 0;
    memmove(line, open + 1, strlen(open + 1) + 1);
#endif
    char *colon = strrchr(line, ':');
    if (!colon || line[0] == '?' || *found == 2) return;
    const int number = atoi(colon + 1);
    *colon = 0;
    const int inlined = in_common(line) || strstr(line, "intrin.h"); /* into the kernel, or into another such function */
    if (*found && inlined) return;
    places[place].line = number;
    snprintf(places[place].path, sizeof places[place].path, "%.1023s", line);
    char *name = strrchr(line, '/'); /* directory/file:line says enough */
    while (name && name > line && name[-1] != '/') name--;
    snprintf(places[place].text, sizeof places[place].text, "%.140s:%d", name ? name : line, number);
    *found = inlined ? 1 : 2;
}

/* Makes path one word of a shell command: it stands between apostrophes, and one of its own becomes '\''. */
static void quote(char *word, const char *path)
{
    *word++ = '\'';
    for (; *path; path++) {
        if (*path == '\'') word = stpcpy(word, "'\\'");
        *word++ = *path;
    }
    strcpy(word, "'");
}

/* Asks the tool that comes with the compiler. */
static void resolve(int first, int count)
{
    char path[1024] = "", quoted[4 * sizeof path + 2], line[2048];
    char *command = malloc(sizeof quoted + 256 + 24 * (size_t)count);
    int length, found = 0;
    if (!command) return;
#ifdef __APPLE__
    uint32_t path_size = sizeof path;
    Dl_info info;
    if (_NSGetExecutablePath(path, &path_size) || !dladdr(report_base(), &info)) return;
    quote(quoted, path);
    length = sprintf(command, "for a in");
    const char *end = "; do echo 0x; atos -i -fullPath -o %s -l %p $a; done 2>/dev/null";
#else
    const ssize_t path_length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (path_length < 0) return;
    quote(quoted, path);
    length = sprintf(command, "addr2line -a -i -e %s", quoted);
    const char *end = " 2>/dev/null";
#endif
    for (int i = first; i < first + count; i++) /* a return address is that of the next instruction */
        length += sprintf(command + length, " 0x%lx", (unsigned long)((uintptr_t)places[i].pc - 1));
#ifdef __APPLE__
    sprintf(command + length, end, quoted, info.dli_fbase);
#else
    sprintf(command + length, "%s", end);
#endif
    FILE *tool = popen(command, "r");
    int place = first - 1;
    while (tool && fgets(line, sizeof line, tool)) {
        if (strncmp(line, "0x", 2) == 0) { /* the address itself: its lines follow */
            place++;
            found = 0;
        } else if (place >= first && place < first + count)
            take_line(place, line, &found);
    }
    if (tool) pclose(tool);
    free(command);
}

void report_resolve(const void *const *pcs, int count)
{
    pthread_mutex_lock(&mutex);
    const int first = place_count;
    for (int i = 0; i < count && place_count < MAX_PLACES; i++) {
        if (find_place(pcs[i]) < place_count) continue;
        places[place_count].pc = pcs[i];
        snprintf(places[place_count].text, sizeof places[0].text, "code address %p", pcs[i]);
        place_count++;
    }
    if (place_count > first) resolve(first, place_count - first);
    pthread_mutex_unlock(&mutex);
}

const char *report_place(const void *pc)
{
    report_resolve(&pc, 1);
    const int i = find_place(pc);
    return i < place_count ? places[i].text : "an unknown line";
}

const char *report_source(const void *pc, int *line)
{
    report_resolve(&pc, 1);
    const int i = find_place(pc);
    if (i >= place_count || !places[i].line) return NULL;
    *line = places[i].line;
    return places[i].path;
}

int report_same_line(const void *a, const void *b)
{
    return a == b || strcmp(report_place(a), report_place(b)) == 0;
}

static int64_t errors;
static const char *keys[MAX_KEYS][2]; /* texts of places */
static int key_count, printed;

void report_error(const void *key_a, const void *key_b, const char *format, ...)
{
    const char *a = report_place(key_a), *b = key_b ? report_place(key_b) : "";
    pthread_mutex_lock(&mutex);
    errors++;
    int known = 0;
    for (int i = 0; i < key_count; i++) known |= strcmp(keys[i][0], a) == 0 && strcmp(keys[i][1], b) == 0;
    if (!known && key_count < MAX_KEYS) {
        keys[key_count][0] = a;
        keys[key_count++][1] = b;
    }
    if (!known && printed < MAX_REPORTS) {
        va_list arguments;
        va_start(arguments, format);
        fprintf(stderr, "error: ");
        vfprintf(stderr, format, arguments);
        fprintf(stderr, "\n");
        va_end(arguments);
        if (++printed == MAX_REPORTS) fprintf(stderr, "error: %d reports; further ones are only counted\n", MAX_REPORTS);
    }
    pthread_mutex_unlock(&mutex);
}

int64_t report_count(void)
{
    return errors;
}

const char *report_lane(int warp, int lane)
{
    static __thread char text[64];
    snprintf(text, sizeof text, "block %lld, warp %d, lane %d", (long long)simt_worker->block, warp, lane);
    return text;
}

const char *report_thread(void)
{
    return report_lane(simt_worker->warp, simt_worker->lane);
}
