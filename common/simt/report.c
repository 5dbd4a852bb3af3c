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
    char text[160];
} places[MAX_PLACES];
static int place_count;

/* Asks the tool that comes with the compiler.  It prints the chain of inlined calls, innermost first: the first line
 * that lies outside of common/ is the kernel's own. */
static void resolve(const void *pc, char *text, size_t size)
{
    char path[2048] = "", command[2300], line[1024];
    const uintptr_t call = (uintptr_t)pc - 1; /* a return address is that of the next instruction */
    snprintf(text, size, "code address %p", pc);
#ifdef __APPLE__
    uint32_t path_size = sizeof path;
    Dl_info info;
    if (_NSGetExecutablePath(path, &path_size) || !dladdr(pc, &info)) return;
    snprintf(command, sizeof command, "atos -i -fullPath -o '%s' -l %p 0x%lx 2>/dev/null", path, info.dli_fbase,
             (unsigned long)call);
#else
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%lx 2>/dev/null", path, (unsigned long)call);
#endif
    FILE *tool = popen(command, "r");
    if (!tool) return;
    int found = 0;
    while (fgets(line, sizeof line, tool)) {
        line[strcspn(line, "\n")] = 0;
        char *discriminator = strstr(line, " (discriminator");
        if (discriminator) *discriminator = 0;
#ifdef __APPLE__
        char *open = strrchr(line, '('), *close = strrchr(line, ')');
        if (!open || !close) continue;
        *close = 0;
        memmove(line, open + 1, strlen(open + 1) + 1);
#endif
        if (line[0] == '?' || found == 2) continue;
        const int inside_common = strstr(line, "common/") != NULL;
        if (found && inside_common) continue;
        char *name = strrchr(line, '/'); /* directory/file:line says enough */
        while (name && name > line && name[-1] != '/') name--;
        snprintf(text, size, "%.*s", (int)size - 1, name ? name : line);
        found = inside_common ? 1 : 2;
    }
    pclose(tool);
}

const char *report_place(const void *pc)
{
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (i < place_count && places[i].pc != pc) i++;
    if (i == place_count) {
        if (i == MAX_PLACES) i = place_count = 0;
        places[i].pc = pc;
        resolve(pc, places[i].text, sizeof places[i].text);
        place_count++;
    }
    pthread_mutex_unlock(&mutex);
    return places[i].text;
}

int report_same_line(const void *a, const void *b)
{
    return a == b || strcmp(report_place(a), report_place(b)) == 0;
}

static int64_t errors;
static const void *keys[MAX_KEYS][2];
static int key_count, printed;

void report_error(const void *key_a, const void *key_b, const char *format, ...)
{
    pthread_mutex_lock(&mutex);
    errors++;
    int known = 0;
    for (int i = 0; i < key_count; i++) known |= keys[i][0] == key_a && keys[i][1] == key_b;
    if (!known && key_count < MAX_KEYS) {
        keys[key_count][0] = key_a;
        keys[key_count++][1] = key_b;
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
