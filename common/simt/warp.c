/* ldmatrix, mma.sync and cp.async, as ptx.h describes them. */
#include "simt.h"
#include "../cuda_c.h"
#include "../ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Thread *warp_lanes(void)
{
    return &simt_worker->thread[simt_worker->warp * LANES];
}

/* Shared-memory operands: the observer checks what the compiler's instrumentation cannot see. */
static void check_shared_operand(const void *address, const char *instruction, const void *pc)
{
    Worker *w = simt_worker;
    const int64_t offset = (const char *)address - w->shared;
    if (offset >= 0 && offset + 16 <= w->launch->shared_bytes && offset % 16 == 0) return;
    if (offset >= -SHARED_GUARD && offset < SHARED_LIMIT + SHARED_GUARD)
        report_error(pc, 0, "%s: %s at byte %lld of shared memory, which has %lld: the 16 bytes must lie inside, at a "
                     "multiple of 16 (%s)", report_place(pc), instruction, (long long)offset,
                     (long long)w->launch->shared_bytes, report_thread());
    else
        report_error(pc, 0, "%s: %s at an address that is not in shared memory (%s)", report_place(pc), instruction,
                     report_thread());
    simt_stop_block();
}

uint4 simt_ldmatrix(const void *row, int transpose)
{
    Thread *self = simt_this_thread(), *lanes = warp_lanes();
    void *pc = __builtin_return_address(0);
    check_shared_operand(row, "ldmatrix", pc);
    if (simt_worker->observer) observe(row, 16, ACCESS_LDMATRIX, pc);
    memcpy(self->words, &row, sizeof row);
    if (simt_meet(MEET_LDMATRIX, FULL_WARP, pc)) {
        const uint16_t *rows[LANES]; /* row i % 8 of matrix i / 8 */
        for (int lane = 0; lane < LANES; lane++) memcpy(&rows[lane], lanes[lane].words, sizeof rows[lane]);
        for (int lane = 0; lane < LANES; lane++)
            for (int m = 0; m < 4; m++) {
                const int a = lane / 4, b = 2 * (lane % 4);
                const uint16_t low = transpose ? rows[8 * m + b][a] : rows[8 * m + a][b];
                const uint16_t high = transpose ? rows[8 * m + b + 1][a] : rows[8 * m + a][b + 1];
                lanes[lane].words[m] = (uint32_t)high << 16 | low;
            }
        simt_release(FULL_WARP);
    }
    const uint4 matrices = {self->words[0], self->words[1], self->words[2], self->words[3]};
    return matrices;
}

static float half_to_float(uint16_t bits)
{
    const element_t e = {bits};
    return to_float(e); /* this file is compiled for f16 */
}

static void unpack(uint32_t pair, int bf16, float *low, float *high)
{
    *low = bf16 ? simt_float(pair << 16) : half_to_float((uint16_t)pair);
    *high = bf16 ? simt_float(pair & 0xffff0000u) : half_to_float((uint16_t)(pair >> 16));
}

SimtFloat4 simt_mma(int bf16, SimtFloat4 d, uint4 a, unsigned b0, unsigned b1)
{
    Thread *self = simt_this_thread(), *lanes = warp_lanes();
    memcpy(self->words, &d, sizeof d);
    self->words[4] = a.x, self->words[5] = a.y, self->words[6] = a.z, self->words[7] = a.w;
    self->words[8] = b0, self->words[9] = b1;
    if (simt_meet(MEET_MMA, FULL_WARP, __builtin_return_address(0))) {
        float left[16][16], right[16][8], sum[16][8];
        for (int lane = 0; lane < LANES; lane++) {
            const uint32_t *w = lanes[lane].words;
            const int g = lane / 4, c = 2 * (lane % 4);
            unpack(w[4], bf16, &left[g][c], &left[g][c + 1]);
            unpack(w[5], bf16, &left[g + 8][c], &left[g + 8][c + 1]);
            unpack(w[6], bf16, &left[g][c + 8], &left[g][c + 9]);
            unpack(w[7], bf16, &left[g + 8][c + 8], &left[g + 8][c + 9]);
            unpack(w[8], bf16, &right[c][g], &right[c + 1][g]);
            unpack(w[9], bf16, &right[c + 8][g], &right[c + 9][g]);
        }
        for (int i = 0; i < 16; i++) {
            float row[8] = {0};
            for (int k = 0; k < 16; k++)
                for (int j = 0; j < 8; j++) row[j] += left[i][k] * right[k][j];
            memcpy(sum[i], row, sizeof row);
        }
        for (int lane = 0; lane < LANES; lane++) {
            float before[4];
            const int g = lane / 4, c = 2 * (lane % 4);
            memcpy(before, lanes[lane].words, sizeof before);
            const float after[4] = {before[0] + sum[g][c], before[1] + sum[g][c + 1], before[2] + sum[g + 8][c],
                                    before[3] + sum[g + 8][c + 1]};
            memcpy(lanes[lane].words, after, sizeof after);
        }
        simt_release(FULL_WARP);
    }
    SimtFloat4 result;
    memcpy(&result, self->words, sizeof result);
    return result;
}

/* A copy lands when its group is waited for: the latest moment that the rules allow.  Until then the old contents of
 * shared memory stay, so that a kernel that reads too early computes with them. */
void simt_cp_async(void *shared, const void *global, int bytes)
{
    Thread *self = simt_this_thread();
    void *pc = __builtin_return_address(0);
    check_shared_operand(shared, "cp.async", pc);
    if (bytes != 0 && bytes != 16) {
        report_error(pc, 0, "%s: cp.async of %d bytes: 16, or 0 to fill with zeros (%s)", report_place(pc), bytes,
                     report_thread());
        simt_stop_block();
    }
    if (bytes && !simt_in_arena(global)) {
        report_error(pc, 0, "%s: cp.async from an address that is not in global memory (%s)", report_place(pc),
                     report_thread());
        simt_stop_block();
    }
    if (simt_worker->observer) {
        if (bytes) observe(global, 16, ACCESS_ASYNC_LOAD, pc);
        observe(shared, 16, ACCESS_ASYNC_STORE, pc);
    }
    simt_trace("copy", pc, bytes ? global : NULL, shared, 1);
    if (self->copy_count == self->copy_room) {
        self->copy_room = self->copy_room ? 2 * self->copy_room : 16;
        self->copies = realloc(self->copies, (size_t)self->copy_room * sizeof *self->copies);
        if (!self->copies) abort();
    }
    const AsyncCopy copy = {shared, bytes ? global : NULL, pc, self->copy_group};
    self->copies[self->copy_count++] = copy;
}

/* A thread returns from the kernel.  What it has in flight would land in memory that belongs to the next block. */
void simt_no_copy_is_left(void)
{
    const Thread *self = simt_this_thread();
    if (self->copy_count && simt_worker->observer && !races_found(simt_worker))
        report_error(self->copies[0].pc, 0, "%s: the copy is in flight when %s returns from the kernel, no cp_async_wait "
                     "has covered it", report_place(self->copies[0].pc), report_thread());
}

void simt_wait_for_previous_kernel(void)
{
    simt_this_thread()->waited = 1;
}

void simt_cp_async_commit(void)
{
    Thread *self = simt_this_thread();
    simt_trace("commit", NULL, NULL, NULL, self->copy_group++);
}

void simt_cp_async_wait(int groups)
{
    Thread *self = simt_this_thread();
    int landed = 0;
    while (landed < self->copy_count && self->copies[landed].group < self->copy_group - groups) {
        const AsyncCopy *copy = &self->copies[landed++];
        if (copy->global) memcpy(copy->shared, copy->global, 16);
        else memset(copy->shared, 0, 16);
        if (simt_worker->observer) races_landed(simt_worker, copy->shared - simt_worker->shared);
    }
    simt_trace("wait for", NULL, NULL, NULL, landed);
    self->copy_count -= landed;
    memmove(self->copies, self->copies + landed, (size_t)self->copy_count * sizeof *self->copies);
}
