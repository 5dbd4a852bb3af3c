/* Runs kernels.  Each CUDA thread is a fibre, a block lives on one operating-system thread, and those threads take
 * blocks from a counter.  The lanes of a warp run one after another, each up to the next instruction at which they
 * meet; the last to arrive carries it out for all and goes on.  Then the others go on. */
#include "../cuda_c.h"
#include "simt.h"
#include "../backend.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STACK_BYTES = 256 * 1024 };

/* A fibre never changes its operating-system thread, so the compiler may keep this variable's address. */
__thread Worker *simt_worker;

Thread *simt_this_thread(void)
{
    return &simt_worker->thread[simt_worker->warp * LANES + simt_worker->lane];
}

/* ---- built-in variables ---- */

uint3 simt_thread_index(void)
{
    const uint3 index = {(unsigned)(simt_worker->warp * LANES + simt_worker->lane), 0, 0};
    return index;
}
uint3 simt_block_index(void)
{
    const uint3 index = {(unsigned)simt_worker->block, 0, 0};
    return index;
}
uint3 simt_block_dim(void)
{
    const uint3 dim = {(unsigned)simt_worker->threads, 1, 1};
    return dim;
}
uint3 simt_grid_dim(void)
{
    const uint3 dim = {(unsigned)simt_worker->launch->blocks, 1, 1};
    return dim;
}
void *simt_shared(void)
{
    return simt_worker->shared;
}

/* ---- who runs next ---- */

static const char *meeting_name(Meeting meeting)
{
    static const char *names[] = {"runs", "__syncthreads", "__syncwarp", "__shfl_sync", "__any_sync", "ldmatrix", "mma"};
    return names[meeting];
}

/* A mask may name lanes that a block's last, partial warp does not have.  Returns 1 if somebody waits for one. */
static int report_lane_beyond_block(Worker *w)
{
    for (int t = (w->warps - 1) * LANES; t < w->threads; t++) {
        const Thread *waiting = &w->thread[t];
        if (waiting->waits_in == MEET_NONE || waiting->waits_in == MEET_SYNCTHREADS) continue;
        for (int lane = w->threads % LANES; lane && lane < LANES; lane++) {
            if (!(waiting->mask >> lane & 1)) continue;
            char who[64];
            snprintf(who, sizeof who, "%s", report_lane(t / LANES, t % LANES));
            report_error(waiting->pc, 0, "%s: %s waits in %s for %s, which does not exist: the block has %d threads",
                         report_place(waiting->pc), who, meeting_name(waiting->waits_in),
                         report_lane(t / LANES, lane), w->threads);
            return 1;
        }
    }
    return 0;
}

/* Nobody can run, and not all have returned: some wait for others that will never come. */
static void report_deadlock(Worker *w)
{
    if (report_lane_beyond_block(w)) return; /* why others may be waiting, too */
    for (int t = 0; t < w->threads; t++) {
        const Thread *waiting = &w->thread[t];
        if (waiting->waits_in == MEET_NONE) continue;
        for (int o = 0; o < w->threads; o++) {
            const Thread *other = &w->thread[o];
            const int needed = waiting->waits_in == MEET_SYNCTHREADS ||
                               (o / LANES == t / LANES && (waiting->mask >> o % LANES & 1));
            if (!needed || (other->waits_in == waiting->waits_in && other->pc == waiting->pc)) continue;
            char who[64];
            snprintf(who, sizeof who, "%s", report_lane(t / LANES, t % LANES));
            if (other->waits_in == MEET_NONE)
                report_error(waiting->pc, 0, "%s: %s waits in %s for %s, which has returned from the kernel",
                             report_place(waiting->pc), who, meeting_name(waiting->waits_in),
                             report_lane(o / LANES, o % LANES));
            else
                report_error(waiting->pc, other->pc, "%s: %s waits in %s for %s, which waits in %s at %s: they never meet",
                             report_place(waiting->pc), who, meeting_name(waiting->waits_in),
                             report_lane(o / LANES, o % LANES), meeting_name(other->waits_in),
                             report_place(other->pc));
            return;
        }
    }
}

/* Chooses the next thread and makes it the current one; NULL when the block is over. */
static Fibre *next_fibre(Worker *w)
{
    for (int i = 0; i < w->warps; i++) {
        Warp *warp = &w->warp_state[w->warp];
        if (!warp->runnable && w->observer) observer_warp_quiet(w);
        if (!warp->runnable && warp->parked) { /* those that waited for slower lanes go on */
            warp->runnable = warp->parked;
            warp->parked = 0;
        }
        if (warp->runnable) {
            w->lane = __builtin_ctz(warp->runnable);
            return &w->thread[w->warp * LANES + w->lane].fibre;
        }
        w->warp = (w->warp + 1) % w->warps;
    }
    if (w->returned < w->threads) {
        report_deadlock(w);
        w->stopped = 1;
    }
    return &w->scheduler;
}

static void run_others(Worker *w)
{
    Thread *self = simt_this_thread();
    Fibre *next = next_fibre(w);
    if (next != &self->fibre) fibre_switch(&self->fibre, next);
}

void simt_park(void)
{
    Worker *w = simt_worker;
    Warp *warp = &w->warp_state[w->warp];
    warp->runnable &= ~(1u << w->lane);
    warp->parked |= 1u << w->lane;
    run_others(w);
}

void simt_stop_block(void)
{
    Worker *w = simt_worker;
    w->stopped = 1;
    fibre_switch(&simt_this_thread()->fibre, &w->scheduler);
    abort(); /* nobody switches back to a stopped block */
}

/* ---- meetings ---- */

/* The calling lane arrives at a meeting of the lanes in mask.  Returns 1 to the last one, which must carry the
 * instruction out and then call warp_release; 0 to the others, once that has happened. */
int simt_meet(Meeting meeting, unsigned mask, void *pc)
{
    Worker *w = simt_worker;
    Warp *warp = &w->warp_state[w->warp];
    Thread *self = simt_this_thread(), *lanes = &w->thread[w->warp * LANES];
    const unsigned bit = 1u << w->lane;
    if (!(mask & bit)) {
        report_error(pc, 0, "%s: %s calls %s with mask 0x%08x, in which it is not itself", report_place(pc),
                     report_thread(), meeting_name(meeting), mask);
        simt_stop_block();
    }
    if (meeting == MEET_SHFL || meeting == MEET_MMA)
        simt_trace(meeting == MEET_MMA ? "mma" : "shuffle", pc, NULL, NULL, 1);
    self->waits_in = meeting;
    self->mask = mask;
    self->pc = pc;
    warp->runnable &= ~bit;
    warp->in_warp |= bit;
    if ((warp->in_warp & mask) != mask) {
        run_others(w);
        return 0;
    }
    if (w->observer && !warp->runnable) observer_warp_quiet(w);
    for (unsigned rest = mask & ~bit; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const Thread *other = &lanes[lane];
        if (other->waits_in == meeting && other->mask == mask && other->pc == pc) continue;
        if (other->waits_in == meeting && other->mask == mask && report_same_line(other->pc, pc)) continue;
        char who[64];
        snprintf(who, sizeof who, "%s", report_thread());
        report_error(pc, other->pc, "%s: %s meets in %s (mask 0x%08x), but %s waits in %s (mask 0x%08x) at %s",
                     report_place(pc), who, meeting_name(meeting), mask, report_lane(w->warp, lane),
                     meeting_name(other->waits_in), other->mask, report_place(other->pc));
        simt_stop_block();
    }
    if (w->observer) observer_meeting(meeting, pc, mask);
    return 1;
}

void simt_release(unsigned mask)
{
    Worker *w = simt_worker;
    Warp *warp = &w->warp_state[w->warp];
    Thread *lanes = &w->thread[w->warp * LANES];
    for (unsigned rest = mask; rest; rest &= rest - 1) lanes[__builtin_ctz(rest)].waits_in = MEET_NONE;
    warp->in_warp &= ~mask;
    warp->runnable |= mask;
}

void simt_syncwarp(unsigned mask)
{
    if (mask == 0) mask = FULL_WARP;
    if (simt_meet(MEET_SYNCWARP, mask, __builtin_return_address(0))) simt_release(mask);
}

unsigned simt_shfl(unsigned mask, unsigned value, int source)
{
    Worker *w = simt_worker;
    Thread *self = simt_this_thread(), *lanes = &w->thread[w->warp * LANES];
    void *pc = __builtin_return_address(0);
    self->words[0] = value;
    self->words[1] = (uint32_t)source;
    if (simt_meet(MEET_SHFL, mask, pc)) {
        unsigned result[LANES] = {0};
        for (unsigned rest = mask; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest), from = (int)lanes[lane].words[1];
            if (!(mask >> from & 1)) {
                report_error(pc, 0, "%s: %s reads lane %d in __shfl_sync, which is not in mask 0x%08x",
                             report_place(pc), report_lane(w->warp, lane), from, mask);
                simt_stop_block();
            }
            result[lane] = lanes[from].words[0];
        }
        for (unsigned rest = mask; rest; rest &= rest - 1)
            lanes[__builtin_ctz(rest)].words[0] = result[__builtin_ctz(rest)];
        simt_release(mask);
    }
    return self->words[0];
}

int simt_any(unsigned mask, int predicate)
{
    Thread *self = simt_this_thread(), *lanes = &simt_worker->thread[simt_worker->warp * LANES];
    self->words[0] = predicate != 0;
    if (simt_meet(MEET_ANY, mask, __builtin_return_address(0))) {
        unsigned any = 0;
        for (unsigned rest = mask; rest; rest &= rest - 1) any |= lanes[__builtin_ctz(rest)].words[0];
        for (unsigned rest = mask; rest; rest &= rest - 1) lanes[__builtin_ctz(rest)].words[0] = any;
        simt_release(mask);
    }
    return (int)self->words[0];
}

void simt_syncthreads(void)
{
    Worker *w = simt_worker;
    Warp *warp = &w->warp_state[w->warp];
    Thread *self = simt_this_thread();
    const unsigned bit = 1u << w->lane;
    simt_trace("barrier", NULL, NULL, NULL, 1);
    self->waits_in = MEET_SYNCTHREADS;
    self->pc = __builtin_return_address(0);
    warp->runnable &= ~bit;
    warp->in_block |= bit;
    if (++w->in_block < w->threads) {
        run_others(w);
        return;
    }
    if (w->observer) observer_warp_quiet(w);
    for (int t = 0; t < w->threads; t++) {
        Thread *other = &w->thread[t];
        if (other->pc == self->pc || report_same_line(other->pc, self->pc)) continue;
        char who[64];
        snprintf(who, sizeof who, "%s", report_thread());
        report_error(self->pc, other->pc, "%s: %s meets in __syncthreads, but %s came to the one at %s: every thread "
                     "of a block must come to the same barrier", report_place(self->pc), who,
                     report_lane(t / LANES, t % LANES), report_place(other->pc));
        simt_stop_block();
    }
    if (w->observer) observer_meeting(MEET_SYNCTHREADS, self->pc, 0);
    for (int t = 0; t < w->threads; t++) w->thread[t].waits_in = MEET_NONE;
    for (int i = 0; i < w->warps; i++) {
        w->warp_state[i].runnable = w->warp_state[i].in_block;
        w->warp_state[i].in_block = 0;
    }
    w->in_block = 0;
}

/* ---- blocks ---- */

static void thread_main(void)
{
    Worker *w = simt_worker;
    w->launch->call(w->launch->kernel, w->launch->params);
    simt_no_copy_is_left();
    Warp *warp = &w->warp_state[w->warp];
    warp->runnable &= ~(1u << w->lane);
    w->returned++;
    run_others(w);
    abort(); /* nobody switches to a thread that has returned */
}

/* With a sample of n blocks: is this one of them? */
static int block_observed(const Worker *w)
{
    const int64_t n = simt_observed_blocks(), blocks = w->launch->blocks;
    return n == 0 || n >= blocks || w->block * n / blocks != (w->block + 1) * n / blocks;
}

static void run_block(Worker *w)
{
    for (int t = 0; t < w->threads; t++) {
        char *bottom = w->stacks + (int64_t)t * STACK_BYTES;
        /* Stack tops a power of two apart would share one set of the L1 cache: shift each by another few lines. */
        char *top = bottom + STACK_BYTES - t % LANES * 320 - 64;
        w->thread[t].waits_in = MEET_NONE;
        w->thread[t].copy_count = w->thread[t].copy_group = w->thread[t].waited = 0;
        fibre_create(&w->thread[t].fibre, bottom, top, thread_main);
    }
    for (int i = 0; i < w->warps; i++) {
        const int lanes = w->threads - i * LANES < LANES ? w->threads - i * LANES : LANES;
        const Warp warp = {lanes == LANES ? FULL_WARP : (1u << lanes) - 1, 0, 0, 0};
        w->warp_state[i] = warp;
    }
    w->returned = w->in_block = w->warp = w->lane = 0;
    memset(w->shared, 0xff, (size_t)w->launch->shared_bytes); /* NaN: what was not written is not a value */
    if (w->observer) observer_block_begin(w);
    simt_trace(w->launch->kernel_name, NULL, NULL, NULL, w->launch->blocks);
    fibre_switch(&w->scheduler, next_fibre(w));
    if (w->observer) observer_block_end(w);
}

static void *worker_main(void *argument)
{
    Launch *launch = argument;
    Worker *w = calloc(1, sizeof *w);
    const size_t shared_bytes = SHARED_LIMIT + 2 * SHARED_GUARD;
    char *shared = mmap(0, shared_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const size_t stack_bytes = (size_t)launch->threads * STACK_BYTES;
    char *stacks = mmap(0, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!w || shared == MAP_FAILED || stacks == MAP_FAILED ||
        mprotect(shared + SHARED_GUARD, SHARED_LIMIT, PROT_READ | PROT_WRITE)) {
        fprintf(stderr, "%s: no memory for the stacks of a block of %d threads\n", launch->kernel_name, launch->threads);
        exit(2);
    }
    /* A stack that grows too far hits a page without access instead of its neighbour. */
    for (int t = 0; t < launch->threads; t++)
        mprotect(stacks + (size_t)t * STACK_BYTES, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE);
    w->launch = launch;
    w->threads = launch->threads;
    w->warps = (launch->threads + LANES - 1) / LANES;
    w->shared = shared + SHARED_GUARD;
    w->stacks = stacks;
    struct Observer *observer = simt_observing() ? observer_create() : NULL;
    simt_worker = w;
    simt_catch_faults();
    for (;;) {
        w->block = __atomic_fetch_add(&launch->next_block, 1, __ATOMIC_RELAXED);
        if (w->block >= launch->blocks || __atomic_load_n(&launch->stop, __ATOMIC_RELAXED)) break;
        w->observer = block_observed(w) ? observer : NULL;
        run_block(w);
        if (w->stopped) __atomic_store_n(&launch->stop, 1, __ATOMIC_RELAXED);
    }
    simt_worker = NULL;
    if (observer) observer_merge(observer);
    for (int t = 0; t < w->threads; t++) free(w->thread[t].copies);
    munmap(stacks, stack_bytes);
    munmap(shared, shared_bytes);
    free(w);
    return NULL;
}

static uint32_t next_number = 2, last_number = 2; /* of blocks, through all launches; of the launch before, its first */

void simt_launch(const char *name, void (*call)(void (*)(void), const void *), void (*kernel)(void), const void *params,
                 int64_t blocks, int threads, int64_t shared_bytes, int early)
{
    Launch launch = {name, call, kernel, params, blocks, 0, next_number, early ? last_number : next_number, threads,
                     shared_bytes, 0};
    last_number = next_number;
    next_number += (uint32_t)blocks;
    if (threads < 1 || threads > MAX_THREADS || blocks < 1 || blocks > INT32_MAX) {
        fprintf(stderr, "%s: a launch of %lld blocks of %d threads: a grid has 1 to 2147483647 blocks, a block 1 to %d "
                "threads; give fewer rows, heads or splits\n", name, (long long)blocks, threads, MAX_THREADS);
        exit(2);
    }
    if (shared_bytes > SHARED_LIMIT) {
        fprintf(stderr, "%s: a block needs %lld bytes of shared memory, %d are allowed: choose a smaller BLOCK_N, WARPS, "
                "ROW_TILES or STAGES\n", name, (long long)shared_bytes, SHARED_LIMIT);
        exit(2);
    }
    const int workers = blocks < simt_threads() ? (int)blocks : simt_threads();
    pthread_t *threads_of_os = malloc((size_t)workers * sizeof *threads_of_os);
    int started = 0;
    while (threads_of_os && started < workers - 1 &&
           pthread_create(&threads_of_os[started], NULL, worker_main, &launch) == 0)
        started++;
    worker_main(&launch); /* this thread is the last worker, and the only one if no other could be started */
    while (started > 0) pthread_join(threads_of_os[--started], NULL);
    free(threads_of_os);
    if (launch.stop) exit(1); /* the error has been reported */
}
