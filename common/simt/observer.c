/* Sees every load and store of a kernel.  The kernel file is compiled with -fsanitize=thread, which puts a call of
 * __tsan_read4(address) and the like before each access, but it is linked with the functions below instead of the
 * sanitizer's.  An access is checked at once (inside an array? written before?) and counted later: the n-th time that
 * the lanes of a warp execute one place in the code is one warp instruction, and its addresses are what the memory
 * system sees together. */
#include "simt.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SITES = 4096, AHEAD = 128 }; /* AHEAD: executions of one place by which a lane may lead the others */

typedef enum Space { SPACE_GLOBAL, SPACE_SHARED, SPACE_NONE } Space;

typedef struct Site { /* one place in the code that accesses memory */
    const void *pc;
    Access access; /* or, of SPACE_NONE, a Meeting */
    Space space;
    int size;
    int executions[LANES]; /* by each lane, since the warp was last quiet */
    int most;              /* the largest of them */
    unsigned mask[AHEAD];  /* lanes that took part in the n-th execution */
    uint64_t address[AHEAD][LANES];
    int64_t requests, bytes, sectors, wavefronts, excess; /* excess: over what the fewest conflicts would cost */
} Site;

typedef struct Observer {
    struct {
        uint64_t key;
        Site *site;
    } table[SITES];
    Site *active[SITES]; /* those with executions not counted yet */
    int active_count, site_count;
    struct Races *races;
} Observer;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

Observer *observer_create(void)
{
    Observer *o = calloc(1, sizeof *o);
    if (!o || !(o->races = races_create())) abort();
    return o;
}

struct Races *observer_races(Observer *o)
{
    return o->races;
}

static Site *find_site(Observer *o, const void *pc, Space space, Access access, int size)
{
    const uint64_t key = (uint64_t)(uintptr_t)pc * 32 + (uint64_t)space * 8 + (uint64_t)access;
    uint64_t slot = key * 0x9e3779b97f4a7c15u >> 52; /* 12 bits: SITES */
    while (o->table[slot].key != key) {
        if (!o->table[slot].key) {
            Site *site = calloc(1, sizeof *site);
            if (!site || ++o->site_count == SITES) abort();
            site->pc = pc;
            site->space = space;
            site->access = access;
            site->size = size;
            o->table[slot].key = key;
            o->table[slot].site = site;
            break;
        }
        slot = (slot + 1) % SITES;
    }
    return o->table[slot].site;
}

/* ---- checks ---- */

static void check_global(Worker *w, const char *address, int size, int is_store, const void *pc)
{
    Allocation *a = simt_allocation(address);
    if (!a || address + size > a->base + a->bytes) {
        const Allocation *near = a ? a : simt_nearest_allocation(address);
        report_error(pc, 0, "%s: %s out of bounds: %s %s %d bytes at byte %lld of %s, which has %lld", report_place(pc),
                     is_store ? "store" : "load", report_thread(), is_store ? "writes" : "reads", size,
                     near ? (long long)(address - near->base) : 0, near ? near->name : "no array",
                     near ? (long long)near->bytes : 0);
        simt_stop_block();
    }
    if ((uintptr_t)address % (unsigned)size) {
        report_error(pc, 0, "%s: misaligned: %s %s %d bytes at byte %lld of %s; the address must be a multiple of %d",
                     report_place(pc), report_thread(), is_store ? "writes" : "reads", size,
                     (long long)(address - a->base), a->name, size);
        simt_stop_block();
    }
    races_global(w, a, address - a->base, size, is_store, pc);
}

static void check_shared(Worker *w, const char *address, int size, Access access, const void *pc)
{
    const int is_store = access == ACCESS_STORE || access == ACCESS_ASYNC_STORE;
    const int64_t offset = address - w->shared;
    if (offset < 0 || offset + size > w->launch->shared_bytes) {
        report_error(pc, 0, "%s: %s out of bounds: %s %s %d bytes at byte %lld of shared memory, which has %lld",
                     report_place(pc), is_store ? "store" : "load", report_thread(), is_store ? "writes" : "reads", size,
                     (long long)offset, (long long)w->launch->shared_bytes);
        simt_stop_block();
    }
    if ((uintptr_t)address % (unsigned)size) {
        report_error(pc, 0, "%s: misaligned: %s %s %d bytes at byte %lld of shared memory; the address must be a "
                     "multiple of %d", report_place(pc), report_thread(), is_store ? "writes" : "reads", size,
                     (long long)offset, size);
        simt_stop_block();
    }
    races_shared(w, offset, size, access, pc);
}

/* Memory cannot lie near 0, where a null pointer leads, nor above the addresses of a program, where one leads that
 * nothing has written. */
static int may_be_memory(const char *address)
{
    const uint64_t low = 64 * 1024, high = (uint64_t)1 << 48;
    return (uint64_t)(uintptr_t)address - low < high - low;
}

static __attribute__((noreturn)) void report_no_memory(const char *address, int size, int is_store, const void *pc)
{
    report_error(pc, 0, "%s: %s out of bounds: %s %s %d bytes at address 0x%llx: a null or uninitialised pointer",
                 report_place(pc), is_store ? "store" : "load", report_thread(), is_store ? "writes" : "reads", size,
                 (unsigned long long)(uintptr_t)address);
    simt_stop_block();
}

/* ---- counting by warp instruction ---- */

static void count_site(Site *site)
{
    for (int n = 0; n < site->most; n++) {
        const unsigned mask = site->mask[n];
        if (!mask) continue;
        site->requests++;
        site->bytes += (int64_t)site->size * __builtin_popcount(mask);
        if (site->space == SPACE_GLOBAL) {
            site->sectors += global_sectors(site->address[n], mask, site->size);
        } else {
            int least;
            const int wavefronts = shared_wavefronts(site->address[n], mask, site->size, site->access, &least);
            site->wavefronts += wavefronts;
            site->excess += wavefronts - least;
        }
    }
    memset(site->mask, 0, (size_t)site->most * sizeof site->mask[0]);
    memset(site->executions, 0, sizeof site->executions);
    site->most = 0;
}

void observer_warp_quiet(Worker *w)
{
    Observer *o = w->observer;
    for (int i = 0; i < o->active_count; i++) count_site(o->active[i]);
    o->active_count = 0;
}

void observe(const void *pointer, int size, Access access, const void *pc)
{
    const int is_store = access == ACCESS_STORE || access == ACCESS_ASYNC_STORE;
    Worker *w = simt_worker;
    if (!w || !w->observer) return;
    const char *address = pointer;
    Space space;
    if (simt_in_arena(address)) space = SPACE_GLOBAL;
    else if ((uint64_t)(address - (w->shared - SHARED_GUARD)) < SHARED_LIMIT + 2 * SHARED_GUARD) space = SPACE_SHARED;
    else if (may_be_memory(address)) return; /* a local array, or a table of constants */
    else report_no_memory(address, size, is_store, pc);
    if (space == SPACE_GLOBAL) check_global(w, address, size, is_store, pc);
    else check_shared(w, address, size, access, pc);
    if (simt_tracing && access <= ACCESS_LDMATRIX) /* a copy is traced where both its addresses are known */
        simt_trace(access == ACCESS_LOAD ? "load" : access == ACCESS_STORE ? "store" : "ldmatrix", pc,
                   space == SPACE_GLOBAL ? address : NULL, space == SPACE_SHARED ? address : NULL, 1);

    Site *site = find_site(w->observer, pc, space, access, size);
    if (site->executions[w->lane] == AHEAD) simt_park();
    const int n = site->executions[w->lane]++;
    if (n >= site->most) {
        if (site->most == 0) w->observer->active[w->observer->active_count++] = site;
        site->most = n + 1;
    }
    site->mask[n] |= 1u << w->lane;
    site->address[n][w->lane] = (uint64_t)(uintptr_t)address;
}

void observer_meeting(Meeting meeting, const void *pc, unsigned mask)
{
    Worker *w = simt_worker;
    find_site(w->observer, pc, SPACE_NONE, (Access)meeting, 0)->requests++;
    if (meeting == MEET_SYNCTHREADS) races_barrier(w);
    if (meeting == MEET_SYNCWARP) races_syncwarp(w, mask);
}

void observer_block_begin(Worker *w)
{
    races_block_begin(w);
}

void observer_block_end(Worker *w)
{
    observer_warp_quiet(w);
    races_block_end(w);
}

void observer_merge(Observer *o)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < SITES; i++) {
        Site *site = o->table[i].site;
        if (!site) continue;
        const SiteCounts counts = {site->pc, (int)site->space * 8 + (int)site->access, site->requests, site->bytes,
                                   site->sectors, site->wavefronts, site->excess};
        profile_add(&counts);
        free(site);
    }
    races_free(o->races);
    pthread_mutex_unlock(&mutex);
    free(o);
}

/* ---- what the compiler calls ---- */

#define HOOKS(size)                                                                                                    \
    void __tsan_read##size(void *address)                                                                              \
    {                                                                                                                  \
        observe(address, size, ACCESS_LOAD, __builtin_return_address(0));                                                        \
    }                                                                                                                  \
    void __tsan_write##size(void *address)                                                                             \
    {                                                                                                                  \
        observe(address, size, ACCESS_STORE, __builtin_return_address(0));                                                        \
    }                                                                                                                  \
    void __tsan_unaligned_read##size(void *address)                                                                    \
    {                                                                                                                  \
        observe(address, size, ACCESS_LOAD, __builtin_return_address(0));                                                        \
    }                                                                                                                  \
    void __tsan_unaligned_write##size(void *address)                                                                   \
    {                                                                                                                  \
        observe(address, size, ACCESS_STORE, __builtin_return_address(0));                                                        \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void __tsan_init(void)
{
}
void __tsan_func_entry(void *caller)
{
    (void)caller;
}
void __tsan_func_exit(void)
{
}

/* Structs of other sizes and whole-array copies: byte by byte would be the truth, in 4-byte steps is what a GPU does. */
static void observe_range(const char *address, uint64_t bytes, int is_store, const void *pc)
{
    const int step = bytes % 4 == 0 && (uintptr_t)address % 4 == 0 ? 4 : 1;
    for (uint64_t i = 0; i < bytes; i += (uint64_t)step) observe(address + i, step, is_store ? ACCESS_STORE : ACCESS_LOAD, pc);
}
void __tsan_read_range(void *address, uint64_t bytes)
{
    observe_range(address, bytes, 0, __builtin_return_address(0));
}
void __tsan_write_range(void *address, uint64_t bytes)
{
    observe_range(address, bytes, 1, __builtin_return_address(0));
}
void *__tsan_memcpy(void *to, const void *from, size_t bytes) /* device.h's, and of newer clang */
{
    observe_range(from, bytes, 0, __builtin_return_address(0));
    observe_range(to, bytes, 1, __builtin_return_address(0));
    return memcpy(to, from, bytes);
}
void *__tsan_memset(void *to, int value, size_t bytes)
{
    observe_range(to, bytes, 1, __builtin_return_address(0));
    return memset(to, value, bytes);
}
