/* Device memory of the executor.  It is taken from one reserved range of addresses, with pages that nobody may touch
 * between the arrays; so the observer can tell where an address that runs out of its array was meant to point, and a
 * run without the observer stops at once. */
#include "simt.h"
#include "../backend.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_ALLOCATIONS = 64, ALIGNMENT = 256 };
static const int64_t ARENA_BYTES = (int64_t)1 << 40;
static const int64_t GAP = (int64_t)64 << 20; /* wide: a wrong row is many bytes off */
static const int64_t FRONT = (int64_t)8 << 30; /* before the first array: where a 32-bit offset that overflowed points */

static char *arena, *arena_next;
static Allocation allocations[MAX_ALLOCATIONS];
static int allocation_count, observing;
static int64_t observed_blocks;

int simt_observing(void)
{
    return observing;
}

int64_t simt_observed_blocks(void)
{
    return observed_blocks;
}

void backend_observe_blocks(int64_t blocks)
{
    observed_blocks = blocks;
}

int simt_threads(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > 256 ? 256 : (int)cores;
}

int simt_in_arena(const void *address)
{
    return (uint64_t)((const char *)address - arena) < (uint64_t)ARENA_BYTES;
}

Allocation *simt_allocation(const void *address)
{
    static __thread int last; /* accesses come in runs */
    Allocation *a = &allocations[last];
    if ((uint64_t)((const char *)address - a->base) < (uint64_t)a->bytes) return a;
    for (int i = 0; i < allocation_count; i++) {
        a = &allocations[i];
        if ((uint64_t)((const char *)address - a->base) < (uint64_t)a->bytes) {
            last = i;
            return a;
        }
    }
    return NULL;
}

/* The array with the end that is closest to address: the one that the index was most likely meant for. */
Allocation *simt_nearest_allocation(const void *address)
{
    Allocation *nearest = NULL;
    int64_t smallest = INT64_MAX;
    for (int i = 0; i < allocation_count; i++) {
        Allocation *a = &allocations[i];
        const int64_t before = a->base - (const char *)address, after = (const char *)address - (a->base + a->bytes);
        const int64_t distance = before > after ? before : after;
        if (a->base && distance < smallest) smallest = distance, nearest = a;
    }
    return nearest;
}

/* Without the observer an address outside of every array ends here; an integer division by zero, which x86 does not
 * carry out, with it too. */
static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    if (!simt_worker) { /* not a kernel's doing */
        signal(signal_number, SIG_DFL);
        return;
    }
    if (signal_number == SIGFPE) {
        const char *pc = (const char *)info->si_addr + 1; /* as if it were the address that a call returns to */
        report_error(pc, 0, "%s: %s divides an integer by zero; a GPU goes on with some number", report_place(pc),
                     report_thread());
        _exit(1);
    }
    static const char unobserved[] = "error: a kernel touched an address outside of every array; run it without "
                                     "--no-observe to see where\n";
    static const char watched[] = "error: a kernel touched an address that is no device memory (a null or wild "
                                  "pointer), or its stack overflowed\n";
    const char *text = observing ? watched : unobserved;
    if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(1);
    _exit(1);
}

void backend_init(int observe)
{
    observing = observe;
    if (arena) return;
    arena = mmap(NULL, (size_t)ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) {
        fprintf(stderr, "the executor cannot reserve 1 TiB of address space (ulimit -v must not be set)\n");
        exit(2);
    }
    arena_next = arena + FRONT;
}

void simt_catch_faults(void)
{
    static __thread char signal_stack[64 * 1024]; /* the handler cannot run on a stack that has overflowed */
    const stack_t stack = {.ss_sp = signal_stack, .ss_size = sizeof signal_stack};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(&stack, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGFPE, &action, NULL);
}

DeviceInfo backend_info(void)
{
    DeviceInfo info;
    memset(&info, 0, sizeof info);
    snprintf(info.name, sizeof info.name, "CPU executor, %d thread%s%s", simt_threads(), simt_threads() > 1 ? "s" : "",
             observing ? "" : ", not observed");
    info.multiprocessors = 1;
    info.memory_free = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    if (observing) info.memory_free /= 1 + (int64_t)sizeof(GlobalCell) / 2; /* the observer's cells */
    info.shared_limit = SHARED_LIMIT;
    return info;
}

void *backend_alloc(int64_t bytes, const char *name)
{
    const int64_t page = sysconf(_SC_PAGESIZE), rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const int64_t pages = (rounded + page - 1) / page * page;
    Allocation *a = NULL;
    for (int i = 0; i < allocation_count && !a; i++)
        if (!allocations[i].base) a = &allocations[i];
    if (!a && allocation_count < MAX_ALLOCATIONS) a = &allocations[allocation_count++];
    if (!a || arena_next + pages + GAP > arena + ARENA_BYTES || mprotect(arena_next, (size_t)pages, PROT_READ | PROT_WRITE)) {
        fprintf(stderr, "%s: no %lld bytes of memory left\n", name, (long long)bytes);
        exit(2);
    }
    a->name = name;
    a->base = arena_next + (pages - rounded); /* ends where the page ends: the next byte is out of bounds */
    a->bytes = bytes;
    a->cells = observing ? calloc((size_t)(bytes + 1) / 2, sizeof *a->cells) : NULL;
    a->early = observing ? calloc((size_t)(bytes + 1) / 2, sizeof *a->early) : NULL;
    if (observing && (!a->cells || !a->early)) {
        fprintf(stderr, "%s: no memory to observe %lld bytes (--no-observe needs less)\n", name, (long long)bytes);
        exit(2);
    }
    memset(a->base, 0xff, (size_t)rounded); /* NaN in every floating-point type */
    arena_next += pages + GAP;
    return a->base;
}

void backend_free(void *device)
{
    Allocation *a = device ? simt_allocation(device) : NULL;
    if (!a) return;
    const int64_t page = sysconf(_SC_PAGESIZE);
    char *first = (char *)((uintptr_t)a->base / (uintptr_t)page * (uintptr_t)page);
    const int64_t pages = (a->bytes + (a->base - first) + page - 1) / page * page;
    mmap(first, (size_t)pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    free(a->cells);
    free(a->early);
    memset(a, 0, sizeof *a);
}

void backend_upload(void *device, const void *host, int64_t bytes)
{
    Allocation *a = simt_allocation(device);
    memcpy(device, host, (size_t)bytes);
    for (int64_t i = 0; a && a->cells && i < bytes; i += 2) a->cells[((char *)device - a->base + i) / 2].writer = 1;
}

void backend_download(void *host, const void *device, int64_t bytes)
{
    memcpy(host, device, (size_t)bytes);
}

void backend_synchronize(void) /* launches wait for their kernels already */
{
}

double backend_time(void (*launch)(void *context), void *context, int runs, int flush_l2)
{
    (void)launch, (void)context, (void)runs, (void)flush_l2;
    return -1;
}
