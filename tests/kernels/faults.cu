/* Small kernels with one fault each, and some without, to see that the executor names what is wrong.
 * The line of the fault carries a comment FAULT(name); tests/test_executor.py looks the line numbers up.
 * usage: faults NAME */
#include "../../common/backend.h"
#include "../../common/cuda_c.h"
#include "../../common/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Params {
    const float *in; /* [n] */
    float *out;      /* [n] */
    const float *never_written; /* [n] */
    int n;
} Params;
KERNEL_PARAMS(Params)

enum { N = 64 };

__global__ void right(const Params p) /* no fault: everything a kernel may do at once */
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    shared[t] = p.in[blockIdx.x * N + t];
    __syncthreads();
    float x = shared[N - 1 - t];
    if (t < 32) {
        x += __shfl_xor_sync(FULL_WARP, x, 1);
        __syncwarp();
    }
    if (t % 32 < 16) x = __shfl_sync(0x0000ffffu, x, 3);
    else x = __shfl_sync(0xffff0000u, x, 20);
    __syncthreads();
    p.out[blockIdx.x * N + t] = x;
}

__global__ void load_past_end(const Params p)
{
    const int t = threadIdx.x;
    p.out[blockIdx.x * N + t] = p.in[t + 1 + (p.n - N)]; /* FAULT(load_past_end) */
}

__global__ void store_before_start(const Params p)
{
    const int t = threadIdx.x;
    p.out[(int)(blockIdx.x * N) + t - 1] = p.in[t]; /* FAULT(store_before_start) */
}

__global__ void offset_overflow(const Params p)
{
    const int t = threadIdx.x;
    const int stride = 1 << 30;
    p.out[blockIdx.x * N + t] = p.in[(int)(unsigned)(t * 2u * (unsigned)stride)]; /* FAULT(offset_overflow) */
}

__global__ void uninitialised(const Params p)
{
    const int t = threadIdx.x;
    p.out[blockIdx.x * N + t] = p.never_written[t]; /* FAULT(uninitialised) */
}

__global__ void shared_past_end(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    shared[t + 1] = p.in[t]; /* FAULT(shared_past_end) */
    __syncthreads();
    p.out[blockIdx.x * N + t] = shared[t];
}

__global__ void shared_far_below(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    shared[t - 20000] = p.in[t]; /* FAULT(shared_far_below) */
}

__global__ void shared_far_above(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    p.out[blockIdx.x * N + t] = shared[t + 8000000]; /* FAULT(shared_far_above) */
}

__global__ void null_pointer(const Params p)
{
    const float *nothing = (const float *)(uintptr_t)(p.n - 3 * N);
    p.out[blockIdx.x * N + threadIdx.x] = nothing[threadIdx.x]; /* FAULT(null_pointer) */
}

__global__ void divided_by_zero(const Params p)
{
    const int t = threadIdx.x;
    p.out[blockIdx.x * N + t] = (float)(t / (p.n - 3 * N)); /* FAULT(divided_by_zero) */
}

__global__ void misaligned(const Params p)
{
    const int t = threadIdx.x;
    const uint4 v = LOAD16(p.in + 1 + t / 8); /* FAULT(misaligned) */
    p.out[blockIdx.x * N + t] = (float)v.x;
}

__global__ void barrier_not_reached(const Params p)
{
    const int t = threadIdx.x;
    if (t >= 32) return;
    __syncthreads(); /* FAULT(barrier_not_reached) */
    p.out[blockIdx.x * N + t] = 1;
}

__global__ void two_barriers(const Params p)
{
    const int t = threadIdx.x;
    if (t < 32) {
        __syncthreads(); /* FAULT(two_barriers) */
        p.out[blockIdx.x * N + t] = 1;
    } else {
        p.out[blockIdx.x * N + t] = 2;
        __syncthreads(); /* OTHER(two_barriers) */
    }
}

__global__ void barrier_against_shuffle(const Params p)
{
    const int t = threadIdx.x;
    float x = p.in[t];
    if (t % 2) __syncthreads(); /* FAULT(barrier_against_shuffle) */
    else x = __shfl_sync(FULL_WARP, x, 0); /* OTHER(barrier_against_shuffle) */
    p.out[blockIdx.x * N + t] = x;
}

__global__ void two_shuffles(const Params p)
{
    const int t = threadIdx.x;
    float x = p.in[t];
    if (t % 2) x = __shfl_sync(FULL_WARP, x, 0); /* FAULT(two_shuffles) */
    else x = __shfl_xor_sync(FULL_WARP, x, 1); /* OTHER(two_shuffles) */
    p.out[blockIdx.x * N + t] = x;
}

__global__ void votes(const Params p) /* no fault: of all lanes, of halves that vote by themselves, and where nobody is for it */
{
    const int t = threadIdx.x, lane = t % 32;
    const int all = __any_sync(FULL_WARP, lane == 17 ? 1 << 30 : 0); /* any bit will do */
    int half;
    if (lane < 16) half = __any_sync(0x0000ffffu, lane == 3);
    else half = __any_sync(0xffff0000u, lane == 3);
    const int none = __any_sync(FULL_WARP, t == N + (int)p.in[0]);
    const int warp = __any_sync(FULL_WARP, t >= 32);
    p.out[blockIdx.x * N + t] = (float)(1000 * all + 100 * half + 10 * none + warp);
}

__global__ void shuffled_bits(const Params p) /* no fault: 32 bits arrive as they are, whatever their type */
{
    const int t = threadIdx.x, exact = 16777216 + t % 32; /* half of these no float can hold */
    const int other = __shfl_xor_sync(FULL_WARP, exact, 1);
    const unsigned halves = __shfl_sync(FULL_WARP, 0x3c003c01u + t % 32, 3);
    const float own = __shfl_xor_sync(FULL_WARP, p.in[t], 32); /* there is no such lane: its own */
    p.out[blockIdx.x * N + t] = (other == 16777216 + (t ^ 1) % 32) + 10 * (halves == 0x3c003c04u) + 100 * (own == p.in[t]);
}

__global__ void copies_and_sets(const Params p) /* no fault */
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    if (t == 0) memcpy(shared, p.in, N / 2 * sizeof(float));
    if (t == 1) memset(shared + N / 2, 0, N / 2 * sizeof(float));
    __syncthreads();
    p.out[blockIdx.x * N + t] = shared[t];
}

__global__ void copy_not_seen(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    if (t == 0) memcpy(shared, p.in, N * sizeof(float)); /* OTHER(copy_not_seen) */
    p.out[blockIdx.x * N + t] = shared[t]; /* FAULT(copy_not_seen) */
}

__global__ void set_past_end(const Params p)
{
    SHARED(float, shared);
    if (threadIdx.x == 0) memset(shared, 0, N * sizeof(float) + 64); /* FAULT(set_past_end) */
    p.out[blockIdx.x * N + threadIdx.x] = p.in[threadIdx.x];
}

__global__ void race_of_a_wide_load(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    shared[t] = p.in[t];
    __syncthreads();
    if (t == 40) shared[3] = 1; /* OTHER(race_of_a_wide_load) */
    const unsigned last = t == 0 ? LOAD16(shared).w : 0; /* FAULT(race_of_a_wide_load) */
    p.out[blockIdx.x * N + t] = (float)last;
}

__global__ void vote_against_shuffle(const Params p)
{
    const int t = threadIdx.x;
    float x = p.in[t];
    if (t % 2) x += (float)__any_sync(FULL_WARP, 1); /* FAULT(vote_against_shuffle) */
    else x = __shfl_xor_sync(FULL_WARP, x, 2); /* OTHER(vote_against_shuffle) */
    p.out[blockIdx.x * N + t] = x;
}

__global__ void two_votes(const Params p)
{
    const int t = threadIdx.x;
    float x = p.in[t];
    if (t % 2) x += (float)__any_sync(FULL_WARP, 1); /* FAULT(two_votes) */
    else x -= (float)__any_sync(FULL_WARP, 0); /* OTHER(two_votes) */
    p.out[blockIdx.x * N + t] = x;
}

__global__ void race_past_a_vote(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    shared[t] = p.in[t]; /* OTHER(race_past_a_vote) */
    const int meet = __any_sync(FULL_WARP, 1); /* lanes meet, but their memory is not ordered */
    p.out[blockIdx.x * N + t] = shared[t ^ 1] * (float)meet; /* FAULT(race_past_a_vote) */
}

__global__ void lane_not_in_mask(const Params p)
{
    const int t = threadIdx.x;
    p.out[blockIdx.x * N + t] = __shfl_sync(0x0000ffffu, p.in[t], 0); /* FAULT(lane_not_in_mask) */
}

__global__ void source_not_in_mask(const Params p)
{
    const int t = threadIdx.x;
    float x = p.in[t];
    if (t % 32 < 16) x = __shfl_sync(0x0000ffffu, x, 16 + t); /* FAULT(source_not_in_mask) */
    p.out[blockIdx.x * N + t] = x;
}

__global__ void absent_lane(const Params p)
{
    const int t = threadIdx.x;
    if (t == 7) return;
    p.out[blockIdx.x * N + t] = __shfl_sync(FULL_WARP, p.in[t], 0); /* FAULT(absent_lane) */
}

__global__ void partial_shuffle(const Params p) /* the last warp has 16 lanes */
{
    const float x = __shfl_xor_sync(FULL_WARP, p.in[threadIdx.x], 1); /* FAULT(partial_shuffle) */
    __syncthreads();
    p.out[blockIdx.x * N + threadIdx.x] = x;
}

__global__ void partial_syncwarp(const Params p)
{
    p.out[blockIdx.x * N + threadIdx.x] = p.in[threadIdx.x];
    __syncwarp(); /* FAULT(partial_syncwarp) */
}

__global__ void partial_ldmatrix(const Params p)
{
    SHARED(element_t, shared);
    STORE4(shared + 2 * threadIdx.x, 0);
    __syncthreads();
    const uint4 m = ldmatrix_x4(shared + 8 * (threadIdx.x % 8)); /* FAULT(partial_ldmatrix) */
    p.out[blockIdx.x * N + threadIdx.x] = (float)m.x;
}

__global__ void partial_right(const Params p) /* no fault: the mask names the lanes that there are */
{
    const int t = threadIdx.x;
    p.out[blockIdx.x * N + t] = __shfl_xor_sync(t < 32 ? FULL_WARP : 0x0000ffffu, p.in[t], 1);
}

__global__ void no_race(const Params p) /* no fault: barriers of every kind, in chains, order all that is shared */
{
    SHARED(float, shared);
    const int t = threadIdx.x, lane = t % 32;
    shared[t] = p.in[t];
    __syncwarp();
    float x = shared[t ^ 1];
    __syncwarp();
    if (lane < 16) {
        shared[t] = x;
        __syncwarp(0x0000ffffu);
        x = shared[t ^ 2];
        __syncwarp(0x0000ffffu);
    }
    __syncwarp(lane < 8 || lane >= 24 ? 0xff0000ffu : 0x00ffff00u); /* another way to part the warp */
    __syncwarp();
    shared[t] = x;
    __syncthreads();
    p.out[blockIdx.x * N + t] = shared[N - 1 - t];
}

__global__ void no_race_when_read_again(const Params p) /* no fault: a barrier lies between, if not the last one */
{
    SHARED(float, shared);
    const int t = threadIdx.x, lane = t % 32;
    shared[t] = p.in[t];
    __syncwarp();
    const float neighbour = shared[t ^ 1];
    __syncwarp();
    shared[t] += neighbour; /* reads again, after the other lane's read */
    __syncwarp();
    const float first = shared[t - lane];
    __syncwarp();
    if (lane == 0) shared[t] += 1;
    __syncwarp();
    float x = shared[t - lane]; /* all lanes read, then only pairs of them meet */
    if (lane < 2) {
        __syncwarp(0x00000003u);
        if (lane == 1) x += shared[t - lane];
        __syncwarp(0x00000003u);
    }
    __syncwarp(lane < 2 ? 0x00000003u : 0xfffffffcu);
    __syncwarp();
    if (lane == 2) x += shared[t - lane];
    if (lane == 0 || lane == 2) __syncwarp(0x00000005u);
    x += __shfl_xor_sync(FULL_WARP, 1.0f, 1); /* so that lane 1 reads later than lanes 0 and 2 meet */
    if (lane == 1) x += shared[t - lane];
    if (lane <= 1) __syncwarp(0x00000003u);
    if (lane == 0) shared[t] = first;
    __syncthreads();
    p.out[blockIdx.x * N + t] = shared[t] + x;
}

__global__ void race_with_one_reader(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x, lane = t % 32;
    shared[t] = p.in[t];
    __syncthreads();
    const float x = shared[t - lane + 3]; /* OTHER(race_with_one_reader) */
    if (lane != 2) __syncwarp(0xfffffffbu);
    if (lane == 0) shared[t + 3] = x; /* FAULT(race_with_one_reader) */
    p.out[blockIdx.x * N + t] = x;
}

__global__ void race_with_an_older_reader(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x, lane = t % 32;
    shared[t] = p.in[t];
    __syncthreads();
    float x = 0;
    if (lane >= 30) x = shared[t - lane]; /* OTHER(race_with_an_older_reader) */
    if (lane <= 1) {
        __syncwarp(0x00000003u); /* the warp's count of barriers goes on, lanes 30 and 31 take no part */
        if (lane == 1) x = shared[t - lane];
        __syncwarp(0x00000003u);
    }
    if (lane == 0 || lane == 31) __syncwarp(0x80000001u);
    x += __shfl_xor_sync(FULL_WARP, 1.0f, 1); /* lane 30 has read in any order of the lanes, but nothing says so */
    if (lane == 0) shared[t] = x; /* FAULT(race_with_an_older_reader) */
    p.out[blockIdx.x * N + t] = x;
}

__global__ void race_between_warps(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    shared[t] = p.in[t]; /* OTHER(race_between_warps) */
    __syncwarp();
    p.out[blockIdx.x * N + t] = shared[N - 1 - t]; /* FAULT(race_between_warps) */
}

__global__ void race_within_a_warp(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    shared[t] = p.in[t]; /* OTHER(race_within_a_warp) */
    const float meet = __shfl_xor_sync(FULL_WARP, 1.0f, 1); /* lanes meet, but their memory is not ordered */
    p.out[blockIdx.x * N + t] = shared[t ^ 1] * meet; /* FAULT(race_within_a_warp) */
}

__global__ void race_past_a_partial_mask(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x, lane = t % 32;
    shared[t] = p.in[t]; /* OTHER(race_past_a_partial_mask) */
    __syncwarp(lane < 16 ? 0x0000ffffu : 0xffff0000u); /* halves of the warp, each by itself */
    p.out[blockIdx.x * N + t] = shared[t ^ 16]; /* FAULT(race_past_a_partial_mask) */
}

__global__ void overwrite_too_early(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    shared[t] = p.in[t];
    __syncthreads();
    const float x = shared[(t + 32) % N]; /* OTHER(overwrite_too_early) */
    shared[t] = 0; /* FAULT(overwrite_too_early) */
    p.out[blockIdx.x * N + t] = x;
}

__global__ void shared_uninitialised(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    if (t < N / 2) shared[t] = p.in[t];
    __syncthreads();
    p.out[blockIdx.x * N + t] = shared[t]; /* FAULT(shared_uninitialised) */
}

__global__ void copy_not_waited_for(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    if (t < N / 4) cp_async16(shared + 4 * t, p.in + 4 * t, 16); /* OTHER(copy_not_waited_for) */
    cp_async_commit();
    __syncthreads();
    p.out[blockIdx.x * N + t] = shared[t]; /* FAULT(copy_not_waited_for) */
}

__global__ void copy_without_barrier(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    if (t < N / 4) cp_async16(shared + 4 * t, p.in + 4 * t, 16); /* OTHER(copy_without_barrier) */
    cp_async_commit();
    cp_async_wait(0); /* of the own copies only */
    p.out[blockIdx.x * N + t] = shared[t]; /* FAULT(copy_without_barrier) */
}

__global__ void copy_without_use(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    if (t < N / 4) cp_async16(shared + 4 * t, p.in + 4 * t, 16); /* FAULT(copy_without_use) */
    cp_async_commit();
    p.out[blockIdx.x * N + t] = 0;
}

__global__ void copy_outside(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    cp_async16(shared + 4 * t, p.in + 4 * (t % 16), 16); /* FAULT(copy_outside) */
    cp_async_commit();
    cp_async_wait(0);
    p.out[blockIdx.x * N + t] = 0;
}

__global__ void copy_from_shared(const Params p)
{
    SHARED(float, shared);
    const int t = threadIdx.x;
    shared[t] = p.in[t];
    __syncthreads();
    if (t == 0) cp_async16(shared, shared + 16, 16); /* FAULT(copy_from_shared) */
    cp_async_commit();
    cp_async_wait(0);
    __syncthreads();
    p.out[blockIdx.x * N + t] = shared[t];
}

__global__ void ldmatrix_misaligned(const Params p)
{
    SHARED(element_t, shared);
    const int t = threadIdx.x;
    STORE4(shared + 2 * t, 0);
    __syncthreads();
    const uint4 m = ldmatrix_x4(shared + 4 * (t % 8)); /* FAULT(ldmatrix_misaligned) */
    p.out[blockIdx.x * N + t] = (float)m.x;
}

__global__ void race_between_blocks(const Params p)
{
    const int t = threadIdx.x;
    p.out[t] = p.in[t]; /* FAULT(race_between_blocks) */
}

__global__ void block_overwrites_what_all_read(const Params p)
{
    const int t = threadIdx.x;
    const float x = p.out[t]; /* OTHER(block_overwrites_what_all_read) */
    __syncthreads();
    if (blockIdx.x == gridDim.x - 1) p.out[t] = x + 1; /* FAULT(block_overwrites_what_all_read) */
}

__global__ void reads_all(const Params p) /* the kernel before the early ones */
{
    const int t = blockIdx.x * N + threadIdx.x;
    p.out[t] = p.in[t]; /* OTHER(early_overwrites) */
}

__global__ void early_overwrites(const Params p)
{
    float *in = (float *)p.in + blockIdx.x * N;
    const float x = in[threadIdx.x];
    in[threadIdx.x] = x + 7; /* FAULT(early_overwrites) */
    wait_for_previous_kernel();
}

__global__ void early_waits(const Params p) /* no fault: both kernels read, and this one waits before it writes */
{
    float *in = (float *)p.in + blockIdx.x * N;
    const float x = in[threadIdx.x];
    wait_for_previous_kernel();
    in[threadIdx.x] = x + 7;
    p.out[blockIdx.x * N + threadIdx.x] = x;
}

#define TRY(kernel)                                                                                                    \
    if (!strcmp(name, #kernel)) LAUNCH(kernel, blocks, N, N * sizeof(float), p)
#define TRY_PARTIAL(kernel)                                                                                            \
    if (!strcmp(name, #kernel)) LAUNCH(kernel, blocks, N - 16, N * sizeof(float), p)
#define TRY_EARLY(kernel)                                                                                              \
    if (!strcmp(name, #kernel)) {                                                                                      \
        LAUNCH(reads_all, blocks, N, 0, p);                                                                            \
        LAUNCH_EARLY(kernel, blocks, N, 0, p);                                                                         \
    }

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    const int blocks = 3;
    float in[3 * N], out[3 * N];
    Params p;
    backend_init(1);
    for (int i = 0; i < 3 * N; i++) in[i] = (float)i;
    p.n = 3 * N;
    float *device_in = (float *)backend_alloc(sizeof in, "in"), *device_out = (float *)backend_alloc(sizeof out, "out");
    backend_upload(device_in, in, sizeof in);
    backend_upload(device_out, in, sizeof in);
    p.in = device_in;
    p.out = device_out;
    p.never_written = (float *)backend_alloc(sizeof in, "never_written");
    TRY(right);
    TRY(load_past_end);
    TRY(store_before_start);
    TRY(offset_overflow);
    TRY(uninitialised);
    TRY(shared_past_end);
    TRY(shared_far_below);
    TRY(shared_far_above);
    TRY(null_pointer);
    TRY(divided_by_zero);
    TRY(misaligned);
    TRY(barrier_not_reached);
    TRY(two_barriers);
    TRY(barrier_against_shuffle);
    TRY(two_shuffles);
    TRY(votes);
    TRY(shuffled_bits);
    TRY(copies_and_sets);
    TRY(copy_not_seen);
    TRY(set_past_end);
    TRY(race_of_a_wide_load);
    TRY(vote_against_shuffle);
    TRY(two_votes);
    TRY(race_past_a_vote);
    TRY(lane_not_in_mask);
    TRY(source_not_in_mask);
    TRY(absent_lane);
    TRY_PARTIAL(partial_shuffle);
    TRY_PARTIAL(partial_syncwarp);
    TRY_PARTIAL(partial_ldmatrix);
    TRY_PARTIAL(partial_right);
    TRY(no_race);
    TRY(no_race_when_read_again);
    TRY(race_with_one_reader);
    TRY(race_with_an_older_reader);
    TRY(race_between_warps);
    TRY(race_within_a_warp);
    TRY(race_past_a_partial_mask);
    TRY(overwrite_too_early);
    TRY(shared_uninitialised);
    TRY(copy_not_waited_for);
    TRY(copy_without_barrier);
    TRY(copy_without_use);
    TRY(copy_outside);
    TRY(copy_from_shared);
    TRY(ldmatrix_misaligned);
    TRY(race_between_blocks);
    TRY(block_overwrites_what_all_read);
    TRY_EARLY(early_overwrites);
    TRY_EARLY(early_waits);
    backend_synchronize();
    const Counters c = backend_counters();
    if (c.errors) return 1;
    backend_download(out, device_out, sizeof out);
    printf("loads %lld requests %lld sectors %lld bytes, stores %lld requests %lld sectors %lld bytes\n",
           (long long)c.load_requests, (long long)c.load_sectors, (long long)c.load_bytes, (long long)c.store_requests,
           (long long)c.store_sectors, (long long)c.store_bytes);
    for (int i = 0; i < 3 * N; i++) printf("%g%c", (double)out[i], i % N == N - 1 ? '\n' : ' ');
    return 0;
}
