/* What the executor's own files share.
 *   executor.c  runs blocks: fibres, barriers, shuffles, and what happens when threads do not meet
 *   warp.c      the warp's matrix and copy instructions
 *   memory.c    device memory, and which array an address belongs to
 *   observer.c  every load and store of a kernel: checked at once, counted by warp instruction
 *   races.c     who wrote and who read each cell of memory last, and whether a barrier lies between
 *   banks.c     how many sectors and wavefronts a warp instruction costs
 *   profile.c   the counts by source line
 *   trace.c     what one thread does, in order
 *   report.c    errors, and source lines of code addresses */
#ifndef SIMT_H
#define SIMT_H

#include "fibre.h"
#include <stddef.h>
#include <stdint.h>

enum { LANES = 32, MAX_WARPS = 32, MAX_THREADS = LANES * MAX_WARPS };
enum { SHARED_LIMIT = 227 * 1024 }; /* bytes a block may ask for: the limit of compute capability 9.0 */
enum { SHARED_GUARD = 64 << 20 };   /* bytes nobody may touch on either side: an index that runs out lands here */

typedef enum Meeting { MEET_NONE, MEET_SYNCTHREADS, MEET_SYNCWARP, MEET_SHFL, MEET_ANY, MEET_LDMATRIX, MEET_MMA } Meeting;
typedef enum Access { ACCESS_LOAD, ACCESS_STORE, ACCESS_LDMATRIX, ACCESS_ASYNC_LOAD, ACCESS_ASYNC_STORE } Access;

typedef struct AsyncCopy { /* a cp.async that has not landed */
    char *shared;
    const char *global; /* NULL: zeros */
    const void *pc;     /* the code address of the call */
    int group;
} AsyncCopy;

typedef struct Thread {
    Fibre fibre;
    Meeting waits_in; /* where it stands, MEET_NONE while it can run */
    unsigned mask;    /* of a warp-wide meeting */
    void *pc;         /* the code address of the call */
    uint32_t words[10]; /* what it brings to the meeting, then what it takes away */
    AsyncCopy *copies;  /* in the order that they were started */
    int copy_count, copy_room, copy_group; /* copy_group: the one that is open */
    int waited; /* for the kernel before, where this one was launched early */
} Thread;

typedef struct Warp {
    unsigned runnable, parked, in_warp, in_block; /* lanes: can go on; let others catch up; wait; wait for the block */
} Warp;

struct Launch;
struct Observer;
typedef struct Worker { /* an operating-system thread: runs one block at a time */
    struct Launch *launch;
    int64_t block;
    int warp, lane; /* the thread that runs now */
    int warps, threads;
    int returned, in_block;
    int stopped; /* this block is given up */
    Fibre scheduler;
    Warp warp_state[MAX_WARPS];
    Thread thread[MAX_THREADS];
    char *stacks;
    char *shared; /* SHARED_LIMIT bytes between two guards */
    struct Observer *observer; /* NULL: this block is not observed */
} Worker;

typedef struct Launch {
    const char *kernel_name;
    void (*call)(void (*)(void), const void *);
    void (*kernel)(void);
    const void *params;
    int64_t blocks, next_block; /* next_block: taken by the workers, atomically */
    uint32_t first_number;      /* of the numbers of its blocks */
    uint32_t racing_number;     /* the same, and before the wait of an early launch those of the kernel before */
    int threads;
    int64_t shared_bytes;
    int stop; /* an error ended the launch */
} Launch;

/* Meetings of a warp: all that its lanes do together.  meet returns 1 to the last lane of mask to arrive, which must
 * carry the instruction out for all and then release them, and 0 to the others once that has happened. */
int simt_meet(Meeting meeting, unsigned mask, void *pc);
void simt_release(unsigned mask);

extern __thread Worker *simt_worker; /* NULL outside of kernels */
Thread *simt_this_thread(void);
/* Lets the other lanes of the warp catch up with this one. */
void simt_park(void);
/* Gives the block up after an error was reported; does not return. */
void simt_stop_block(void) __attribute__((noreturn));

/* ---- memory.c ---- */
typedef struct Allocation {
    const char *name;
    char *base;
    int64_t bytes;
    struct GlobalCell *cells; /* one for every 2 bytes; NULL if not observed */
    struct EarlyRead *early;  /* likewise */
} Allocation;
/* Blocks are numbered through all launches, from 2 on; 1 stands for the host. */
typedef struct GlobalCell {
    uint32_t writer, reader;      /* number of the last block that wrote, of the first that read; 0: none */
    uint32_t readers;             /* 1: other blocks of that launch have read it too */
    uint32_t write_pc, read_pc;   /* where: code address relative to report_base() */
} GlobalCell;
/* A read by the kernel before an early launch, of a cell that a block of this launch has read since. */
typedef struct EarlyRead {
    uint32_t reader, pc; /* as above; only for such cells is a page of them ever touched */
} EarlyRead;
int simt_observing(void);
int64_t simt_observed_blocks(void);                 /* of each kernel; 0: all of them */
void simt_catch_faults(void);                       /* in the calling worker: a wild access ends the run with a line */
int simt_threads(void);                             /* workers: the cores of this machine */
int simt_in_arena(const void *address);             /* in the range that device memory is taken from, gaps included */
Allocation *simt_allocation(const void *address);   /* the array that holds address, or NULL */
Allocation *simt_nearest_allocation(const void *address);

/* ---- observer.c ---- */
struct Observer *observer_create(void);
/* One lane's access of size bytes by the instruction at pc; called before it is carried out. */
void observe(const void *address, int size, Access access, const void *pc);
void observer_meeting(Meeting meeting, const void *pc, unsigned mask); /* a warp, or a block at a barrier, has met */
void observer_block_begin(Worker *worker);
void observer_warp_quiet(Worker *worker);           /* no lane of the current warp can run: count what it did */
void observer_block_end(Worker *worker);
void observer_merge(struct Observer *observer);     /* adds its counts to the totals and frees it */

/* ---- warp.c ---- */
void simt_no_copy_is_left(void); /* to the running thread, which returns from the kernel */

/* ---- races.c ---- */
struct Races *races_create(void);
void races_free(struct Races *races);
void races_block_begin(Worker *worker);
void races_block_end(Worker *worker);
void races_barrier(Worker *worker);
void races_syncwarp(Worker *worker, unsigned mask);
void races_shared(Worker *worker, int64_t offset, int size, Access access, const void *pc);
void races_landed(Worker *worker, int64_t offset); /* 16 bytes that a cp.async of the running thread has filled */
int races_found(const Worker *worker);             /* in the block that runs */
void races_global(Worker *worker, Allocation *array, int64_t offset, int size, int is_store, const void *pc);
struct Races *observer_races(struct Observer *observer);

/* ---- profile.c: counts of one place in the code ---- */
typedef struct SiteCounts {
    const void *pc;
    int kind; /* an Access of global (0-) or shared memory (8-), or 16 + a Meeting */
    int64_t requests, bytes, sectors, wavefronts, excess;
} SiteCounts;
void profile_add(const SiteCounts *counts);
void profile_source_text(const void *pc, char *text, size_t size); /* the source line of pc; unchanged if unknown */

/* ---- trace.c ---- */
extern int simt_tracing;
/* The running thread does something; pc: NULL where it is no access but a commit, a wait or a barrier. */
void simt_trace(const char *what, const void *pc, const void *global, const void *shared, int64_t count);

/* ---- banks.c: addresses of the lanes in mask, size bytes each ---- */
int global_sectors(const uint64_t address[LANES], unsigned mask, int size);
/* least: with the words of each phase spread evenly over the banks */
int shared_wavefronts(const uint64_t address[LANES], unsigned mask, int size, Access access, int *least);

/* ---- report.c ---- */
/* "file.cu:12"; a static string.  The innermost line of the kernel file when helpers were inlined into it. */
const char *report_place(const void *pc);
int report_same_line(const void *a, const void *b);
const char *report_source(const void *pc, int *line); /* path of the file; NULL if unknown */
void report_resolve(const void *const *pcs, int count); /* looks many up at once, which is quicker */
const char *report_base(void);                          /* code addresses are near it */
/* One error in a kernel.  The source lines of key_a and key_b (NULL: none) tell causes apart: the same pair is reported
 * once.  Counts it and returns. */
void report_error(const void *key_a, const void *key_b, const char *format, ...) __attribute__((format(printf, 3, 4)));
int64_t report_count(void);
/* "block 3, warp 1, lane 5" of the running thread; a thread-local string */
const char *report_thread(void);
const char *report_lane(int warp, int lane);

#endif
