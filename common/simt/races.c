/* Data races and reads of what nothing has written.
 *
 * Shared memory: two accesses to the same cell by different threads, one of them a write, must have a barrier between
 * them: a __syncthreads, or within a warp a __syncwarp of both lanes (directly or through others).  A shuffle, ldmatrix
 * or mma makes lanes meet but does not order their memory accesses.  Each cell remembers its last write and its last
 * reads; barriers are counted (epoch), and for each pair of lanes the last __syncwarp that tells one of the other's
 * accesses (a vector clock).  A lane that reads knows of some reads before it, and these are forgotten: who comes after
 * the new read comes after them too.  A cp.async writes when it is started and is in flight until its thread waits for
 * it; after that it is a write of that thread, made at the moment of the wait.
 *
 * Global memory: blocks of one launch must not touch a cell that one of them writes. */
#include "simt.h"

#include <stdlib.h>
#include <string.h>

enum { CELL = 2, CELLS = SHARED_LIMIT / CELL, MAX_PENDING = 32 };

typedef struct Cell {
    uint32_t write_epoch, write_time;            /* epoch 0: never; time: of the writer's warp */
    uint32_t read_epoch, read_time, read_lanes;  /* of the warp that read last; lanes: whose reads no other has seen */
    uint32_t other_epoch;                        /* a reader of another warp in this epoch */
    int16_t writer, reader, other_reader;        /* threads; reader: one that read at read_pc */
    int8_t in_flight;                            /* 1: by a cp.async that has not landed */
    int8_t differ;                               /* 1: read_lanes read at different times or places, see Read */
    uint32_t write_pc, read_pc, other_pc;        /* relative to report_base() */
} Cell;

typedef struct Read {
    uint32_t time, pc;
} Read;

typedef struct Races {
    uint32_t epoch, block_epoch; /* barriers so far; at the block's start */
    uint32_t time[MAX_WARPS];    /* __syncwarps of a warp so far, + 1 */
    uint32_t known[MAX_WARPS][LANES][LANES]; /* known[w][a][b]: what lane b did before this time is visible to a */
    struct {
        const void *pc;
        int64_t offset;
        int16_t thread;
    } unwritten[MAX_PENDING]; /* reads of cells that nothing has written, in the order of the run */
    int unwritten_count, raced; /* raced: in this block, which may be why something was not written */
    Cell cell[CELLS];
    Read read[CELLS][LANES]; /* of cells whose reads differ; of the others no page is ever touched */
} Races;

Races *races_create(void)
{
    return calloc(1, sizeof(Races));
}

void races_free(Races *races)
{
    free(races);
}

static uint32_t relative(const void *pc)
{
    return (uint32_t)((const char *)pc - report_base());
}

static const void *absolute(uint32_t pc)
{
    return report_base() + (int32_t)pc;
}

void races_block_begin(Worker *w)
{
    Races *r = observer_races(w->observer);
    r->block_epoch = ++r->epoch;
    r->unwritten_count = r->raced = 0;
}

/* What one copy has left out is read at many places: the first one is reported, the others are named. */
void races_block_end(Worker *w)
{
    Races *r = observer_races(w->observer);
    char others[512] = "";
    if (!r->unwritten_count || r->raced) return;
    for (int i = 1; i < r->unwritten_count && strlen(others) < sizeof others - 200; i++) {
        int known = 0;
        for (int before = 0; before < i; before++) known |= report_same_line(r->unwritten[before].pc, r->unwritten[i].pc);
        if (known) continue;
        strcat(others, *others ? ", " : "; so do ");
        strcat(others, report_place(r->unwritten[i].pc));
    }
    report_error(r->unwritten[0].pc, 0, "%s: uninitialised: %s reads byte %lld of shared memory, which nothing in this "
                 "block has written%s", report_place(r->unwritten[0].pc),
                 report_lane(r->unwritten[0].thread / LANES, r->unwritten[0].thread % LANES),
                 (long long)r->unwritten[0].offset, others);
}

void races_barrier(Worker *w)
{
    observer_races(w->observer)->epoch++;
}

void races_syncwarp(Worker *w, unsigned mask)
{
    Races *r = observer_races(w->observer);
    uint32_t(*known)[LANES] = r->known[w->warp], merged[LANES] = {0};
    const uint32_t now = ++r->time[w->warp];
    for (int a = 0; a < LANES; a++)
        for (int b = 0; (mask >> a & 1) && b < LANES; b++)
            if (known[a][b] > merged[b]) merged[b] = known[a][b];
    for (int a = 0; a < LANES; a++)
        if (mask >> a & 1) merged[a] = now;
    for (int a = 0; a < LANES; a++)
        if (mask >> a & 1) memcpy(known[a], merged, sizeof merged);
}

/* Is what thread did at this epoch and time over, for the running thread? */
static int ordered(const Races *r, const Worker *w, uint32_t epoch, uint32_t time, int thread)
{
    if (epoch < r->epoch) return 1;
    if (thread / LANES != w->warp) return 0;
    return thread % LANES == w->lane || r->known[w->warp][w->lane][thread % LANES] > time;
}

static void report_race(Worker *w, int64_t offset, const void *pc, const char *does, int thread, uint32_t other_pc,
                        const char *did, const void *write_pc, const char *missing)
{
    char who[64];
    strcpy(who, report_thread());
    observer_races(w->observer)->raced = 1;
    report_error(write_pc, 0, "%s: race: %s %s byte %lld of shared memory, which %s %s at %s: %s", report_place(pc), who,
                 does, (long long)offset, report_lane(thread / LANES, thread % LANES), did,
                 report_place(absolute(other_pc)), missing);
}

static Read read_of(const Races *r, const Cell *c, int lane)
{
    const Read common = {c->read_time, c->read_pc};
    return c->differ ? r->read[c - r->cell][lane] : common;
}

/* The running lane reads, and other lanes of its warp have read at another time or place. */
static __attribute__((noinline)) void add_read(Races *r, const Worker *w, Cell *c, Read new)
{
    const uint32_t own = 1u << w->lane, *known = r->known[w->warp][w->lane];
    if ((c->read_lanes & own) && read_of(r, c, w->lane).time == new.time) return; /* the first place is kept */
    c->read_lanes &= ~own;
    for (unsigned rest = c->read_lanes; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if (known[lane] > read_of(r, c, lane).time) c->read_lanes &= ~(1u << lane);
    }
    Read *reads = r->read[c - r->cell];
    if (c->read_lanes) {
        for (unsigned rest = c->differ ? 0 : c->read_lanes; rest; rest &= rest - 1)
            reads[__builtin_ctz(rest)] = read_of(r, c, 0);
        reads[w->lane] = new;
    }
    c->differ = c->read_lanes != 0;
    c->read_time = new.time;
    c->read_pc = new.pc;
    c->read_lanes |= own;
    c->reader = (int16_t)(w->warp * LANES + w->lane);
}

static void note_read(Races *r, const Worker *w, Cell *c, uint32_t pc)
{
    const Read new = {r->time[w->warp], pc};
    const uint32_t own = 1u << w->lane;
    if (c->read_epoch == r->epoch && c->reader / LANES == w->warp) {
        if (!c->differ && c->read_time == new.time && (c->read_pc == pc || (c->read_lanes & own))) c->read_lanes |= own;
        else add_read(r, w, c, new);
        return;
    }
    if (c->read_epoch == r->epoch) {
        c->other_epoch = c->read_epoch;
        c->other_reader = c->reader;
        c->other_pc = c->read_pc;
    }
    c->read_epoch = r->epoch;
    c->read_time = new.time;
    c->read_lanes = own;
    c->differ = 0;
    c->reader = (int16_t)(w->warp * LANES + w->lane);
    c->read_pc = pc;
}

static void check_read(Races *r, Worker *w, Cell *c, int64_t offset, const void *pc)
{
    const int thread = w->warp * LANES + w->lane;
    if (c->write_epoch < r->block_epoch) {
        int known = r->unwritten_count == MAX_PENDING;
        for (int i = 0; i < r->unwritten_count; i++) known |= r->unwritten[i].pc == pc;
        if (!known) {
            r->unwritten[r->unwritten_count].pc = pc;
            r->unwritten[r->unwritten_count].offset = offset;
            r->unwritten[r->unwritten_count++].thread = (int16_t)thread;
        }
    } else if (c->in_flight) {
        report_race(w, offset, pc, "reads", c->writer, c->write_pc, "began to fill with cp.async",
                    absolute(c->write_pc), "the copy is in flight, no cp_async_wait has covered it");
    } else if (!ordered(r, w, c->write_epoch, c->write_time, c->writer)) {
        report_race(w, offset, pc, "reads", c->writer, c->write_pc, "wrote", absolute(c->write_pc),
                    c->writer / LANES == w->warp ? "no __syncwarp or __syncthreads lies between"
                                                 : "no __syncthreads lies between");
    }
    note_read(r, w, c, relative(pc));
}

static void check_write(Races *r, Worker *w, Cell *c, int64_t offset, int is_async, const void *pc)
{
    static const char *missing = "no barrier lies between, so either may come first";
    const int thread = w->warp * LANES + w->lane, written = c->write_epoch >= r->block_epoch;
    const char *does = is_async ? "begins to fill with cp.async" : "writes";
    if (written && c->in_flight)
        report_race(w, offset, pc, does, c->writer, c->write_pc, "began to fill with cp.async", pc,
                    "that copy is still in flight, no cp_async_wait has covered it");
    else if (written && !ordered(r, w, c->write_epoch, c->write_time, c->writer))
        report_race(w, offset, pc, does, c->writer, c->write_pc, "wrote", pc, "no barrier lies between");
    if (c->read_epoch == r->epoch) {
        int reader = c->reader / LANES != w->warp ? c->reader : -1; /* one that this write races with */
        uint32_t read_pc = c->read_pc;
        for (unsigned rest = c->read_lanes & ~(1u << w->lane); rest && reader < 0; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            const Read read = read_of(r, c, lane);
            if (r->known[w->warp][w->lane][lane] > read.time) continue;
            reader = w->warp * LANES + lane;
            read_pc = read.pc;
        }
        if (reader < 0 && c->other_epoch == r->epoch) { /* of another warp than the reads above */
            reader = c->other_reader;
            read_pc = c->other_pc;
        }
        if (reader >= 0) report_race(w, offset, pc, does, reader, read_pc, "read", pc, missing);
    }
    c->write_epoch = r->epoch;
    c->write_time = r->time[w->warp];
    c->writer = (int16_t)thread;
    c->in_flight = (int8_t)is_async;
    c->write_pc = relative(pc);
}

void races_shared(Worker *w, int64_t offset, int size, Access access, const void *pc)
{
    Races *r = observer_races(w->observer);
    const int is_write = access == ACCESS_STORE || access == ACCESS_ASYNC_STORE;
    for (int64_t cell = offset / CELL; cell <= (offset + size - 1) / CELL; cell++) {
        const int64_t byte = cell * CELL < offset ? offset : cell * CELL; /* the first of the access in this cell */
        if (is_write) check_write(r, w, &r->cell[cell], byte, access == ACCESS_ASYNC_STORE, pc);
        else check_read(r, w, &r->cell[cell], byte, pc);
    }
}

int races_found(const Worker *w)
{
    return observer_races(w->observer)->raced;
}

void races_landed(Worker *w, int64_t offset)
{
    Races *r = observer_races(w->observer);
    const int thread = w->warp * LANES + w->lane;
    for (int64_t cell = offset / CELL; cell < (offset + 16) / CELL; cell++) {
        Cell *c = &r->cell[cell];
        if (!c->in_flight || c->writer != thread) continue; /* a later write was reported already */
        c->in_flight = 0;
        c->write_epoch = r->epoch;
        c->write_time = r->time[w->warp];
    }
}

/* The running thread races with block number other, of this launch or of the kernel before. */
static __attribute__((noinline)) void report_global_race(const Worker *w, const Allocation *array, int64_t offset,
                                                         int is_store, const void *pc, uint32_t other, const char *did,
                                                         uint32_t other_pc)
{
    const int before = other < w->launch->first_number; /* the kernel before, which may still run */
    report_error(is_store || before ? pc : absolute(other_pc), 0,
                 "%s: race between %s: %s %s byte %lld of %s, which %s %s at %s: %s", report_place(pc),
                 before ? "kernels" : "blocks", report_thread(), is_store ? "writes" : "reads", (long long)offset,
                 array->name, before ? "the kernel before" : "another block", did, report_place(absolute(other_pc)),
                 before ? "no wait_for_previous_kernel comes first" : "blocks of one launch run in any order");
}

/* Workers run blocks at the same time and without locks here: whichever of two accesses comes second sees the first. */
void races_global(Worker *w, Allocation *array, int64_t offset, int size, int is_store, const void *pc)
{
    const uint32_t own = w->launch->first_number, number = own + (uint32_t)w->block;
    const uint32_t first = simt_this_thread()->waited ? own : w->launch->racing_number;
    for (int64_t cell = offset / 2; cell <= (offset + size - 1) / 2; cell++) {
        const int64_t byte = cell * 2 < offset ? offset : cell * 2;
        GlobalCell *c = &array->cells[cell];
        const uint32_t writer = c->writer, reader = c->reader;
        if (!is_store && !writer && !simt_observed_blocks()) /* in a sample, another block may have written it unseen */
            report_error(pc, 0, "%s: uninitialised: %s reads byte %lld of %s, which nothing has written",
                         report_place(pc), report_thread(), (long long)byte, array->name);
        if (writer >= first && writer != number)
            report_global_race(w, array, byte, is_store, pc, writer, "wrote", c->write_pc);
        else if (is_store && reader >= first && (reader != number || c->readers))
            report_global_race(w, array, byte, is_store, pc, reader, "read", c->read_pc);
        else if (is_store && first < own) { /* the own block has read it since, after the kernel before */
            const EarlyRead read = array->early[cell];
            if (read.reader >= first && read.reader < own)
                report_global_race(w, array, byte, is_store, pc, read.reader, "read", read.pc);
        }
        if (is_store) {
            c->writer = number;
            c->write_pc = relative(pc);
        } else if (reader < own) {
            if (reader >= w->launch->racing_number) { /* only where the launch is early */
                array->early[cell].reader = reader;
                array->early[cell].pc = c->read_pc;
            }
            c->reader = number;
            c->readers = 0;
            c->read_pc = relative(pc);
        } else if (reader != number && !c->readers) /* a store of the same would take the line from other cores */
            c->readers = 1;
    }
}
