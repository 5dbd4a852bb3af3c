/* The ceilings that a kernel's time is set beside, measured on this GPU with instructions and copies alone:
 *   mma     mma.sync m16n8k16, operands in registers, f16 and bf16, f32 accumulators: the tensor cores without memory
 *   ex2     ex2.approx: the unit that the softmax needs
 *   copy    device to device, bytes read plus bytes written;  read: every byte once, nothing written
 * Each is the median of RUNS launches after a warm-up, between events (backend_time).  One line of JSON on stdout.
 * make bench runs it; alone: make build/cuda/ceilings && build/cuda/ceilings */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../backend.h"

#define CHECK(call) check((call), #call, __LINE__)
#define UNROLL _Pragma("unroll")

enum { RUNS = 20 };
enum { THREADS = 256, BLOCKS_AN_SM = 2 };   /* of the arithmetic: 16 warps an SM */
enum { MMA_LOOPS = 4096, EX2_LOOPS = 16384 }; /* a launch of either takes about two milliseconds on an H200 */
enum { A_TILES = 4, B_TILES = 4, CHAINS = 8 }; /* independent work of a thread: 16 accumulators; 8 chains of ex2 */
enum { LOADS = 4, READ_BLOCKS = 4 };           /* of the read; blocks: times those of the arithmetic */

typedef struct Work {
    uint4 *from, *to;
    size_t bytes;
    float *sink; /* where results go that must not be optimised away */
    unsigned blocks;
} Work;

static void check(cudaError_t error, const char *call, int line)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "ceilings: %s in %s, line %d\n", cudaGetErrorString(error), call, line);
    exit(3);
}

/* Bits that look random (Wang's or Jenkins' kind of mixing; any would do). */
static __device__ inline unsigned mix(unsigned x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Two numbers of random sign and size in one register.  0x3800: exponents of f16 from 0.5 on, 0x3f00: of bf16. */
static __device__ inline unsigned two_numbers(unsigned seed, unsigned exponents)
{
    return (mix(seed) & 0x807f807fu) | exponents * 0x10001u;
}

#define DEFINE_MMA_KERNEL(name, type, exponents)                                                                       \
    static __global__ void __launch_bounds__(THREADS) name(Work work)                                                  \
    {                                                                                                                  \
        const unsigned thread = blockIdx.x * THREADS + threadIdx.x;                                                    \
        unsigned a[A_TILES][4], b[B_TILES][2];                                                                         \
        float d[A_TILES][B_TILES][4] = {{{0}}}, sum = 0;                                                               \
        UNROLL for (int i = 0; i < A_TILES; i++)                                                                       \
            UNROLL for (int r = 0; r < 4; r++) a[i][r] = two_numbers(thread * 64 + i * 4 + r, exponents);              \
        UNROLL for (int j = 0; j < B_TILES; j++)                                                                       \
            UNROLL for (int r = 0; r < 2; r++) b[j][r] = two_numbers(thread * 64 + 32 + j * 2 + r, exponents);         \
        for (int loop = 0; loop < MMA_LOOPS; loop++)                                                                   \
            UNROLL for (int i = 0; i < A_TILES; i++)                                                                   \
                UNROLL for (int j = 0; j < B_TILES; j++)                                                               \
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                        \
                                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                     \
                                 : "+f"(d[i][j][0]), "+f"(d[i][j][1]), "+f"(d[i][j][2]), "+f"(d[i][j][3])              \
                                 : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j][0]),               \
                                   "r"(b[j][1]));                                                                      \
        UNROLL for (int i = 0; i < A_TILES; i++)                                                                       \
            UNROLL for (int j = 0; j < B_TILES; j++)                                                                   \
                UNROLL for (int r = 0; r < 4; r++) sum += d[i][j][r];                                                  \
        if (sum == 0.123456789f) work.sink[thread] = sum; /* never, but the compiler cannot know */                    \
    }
DEFINE_MMA_KERNEL(mma_f16, "f16", 0x3800u)
DEFINE_MMA_KERNEL(mma_bf16, "bf16", 0x3f00u)

/* x = 2^-x runs towards 0.641..., from both sides in turn. */
static __global__ void __launch_bounds__(THREADS) ex2(Work work)
{
    const unsigned thread = blockIdx.x * THREADS + threadIdx.x;
    float x[CHAINS], sum = 0;
    UNROLL for (int i = 0; i < CHAINS; i++) x[i] = (float)(mix(thread * CHAINS + i) & 0xffff) * 0x1p-16f;
    for (int loop = 0; loop < EX2_LOOPS; loop++)
        UNROLL for (int i = 0; i < CHAINS; i++) asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(x[i]) : "f"(-x[i]));
    UNROLL for (int i = 0; i < CHAINS; i++) sum += x[i];
    if (sum == 0.123456789f) work.sink[thread] = sum;
}

static __global__ void __launch_bounds__(THREADS) fill(Work work)
{
    const size_t stride = (size_t)gridDim.x * THREADS, count = work.bytes / sizeof(uint4);
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        const unsigned x = (unsigned)i * 4;
        work.from[i] = make_uint4(mix(x), mix(x + 1), mix(x + 2), mix(x + 3));
    }
}

/* 16 bytes a load, LOADS of a thread on their way at a time. */
static __global__ void __launch_bounds__(THREADS) read_all(Work work)
{
    const size_t stride = (size_t)gridDim.x * THREADS, count = work.bytes / sizeof(uint4);
    unsigned all = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += LOADS * stride) {
        uint4 x[LOADS];
        UNROLL for (int j = 0; j < LOADS; j++) x[j] = __ldcs(work.from + i + j * stride);
        UNROLL for (int j = 0; j < LOADS; j++) all ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
    }
    if (all == 0x12345678u) work.sink[blockIdx.x] = (float)all; /* hardly ever, and then harmless */
}

static void launch_mma_f16(void *w) { mma_f16<<<((Work *)w)->blocks, THREADS>>>(*(Work *)w); }
static void launch_mma_bf16(void *w) { mma_bf16<<<((Work *)w)->blocks, THREADS>>>(*(Work *)w); }
static void launch_ex2(void *w) { ex2<<<((Work *)w)->blocks, THREADS>>>(*(Work *)w); }
static void launch_read(void *w) { read_all<<<READ_BLOCKS * ((Work *)w)->blocks, THREADS>>>(*(Work *)w); }
static void launch_copy(void *w)
{
    const Work *work = (const Work *)w;
    CHECK(cudaMemcpyAsync(work->to, work->from, work->bytes, cudaMemcpyDeviceToDevice, 0));
}

static double seconds(void (*launch)(void *work), Work *work)
{
    const double ms = backend_time(launch, work, RUNS, 0);
    CHECK(cudaGetLastError());
    return 1e-3 * ms;
}

int main(void)
{
    struct cudaDeviceProp prop;
    size_t free_bytes, total_bytes;
    CHECK(cudaSetDevice(0));
    CHECK(cudaGetDeviceProperties(&prop, 0));
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));

    const size_t most = free_bytes / 4 < (size_t)4 << 30 ? free_bytes / 4 : (size_t)4 << 30;
    Work work = {NULL, NULL, 0, NULL, (unsigned)(BLOCKS_AN_SM * prop.multiProcessorCount)};
    const size_t round_bytes = (size_t)READ_BLOCKS * work.blocks * THREADS * LOADS * sizeof(uint4);
    work.bytes = most / round_bytes * round_bytes; /* whole rounds of read_all */
    CHECK(cudaMalloc((void **)&work.from, work.bytes));
    CHECK(cudaMalloc((void **)&work.to, work.bytes));
    CHECK(cudaMalloc((void **)&work.sink, work.blocks * THREADS * sizeof(float)));
    fill<<<READ_BLOCKS * work.blocks, THREADS>>>(work);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());

    const double threads = (double)work.blocks * THREADS, warps = threads / 32, bytes = (double)work.bytes;
    const double flops = warps * MMA_LOOPS * A_TILES * B_TILES * (2.0 * 16 * 8 * 16);
    printf("{\"multiprocessors\": %d, ", prop.multiProcessorCount);
    printf("\"mma_f16_tflops\": %.1f, ", flops / seconds(launch_mma_f16, &work) * 1e-12);
    printf("\"mma_bf16_tflops\": %.1f, ", flops / seconds(launch_mma_bf16, &work) * 1e-12);
    printf("\"ex2_per_second\": %.4g, ", threads * EX2_LOOPS * CHAINS / seconds(launch_ex2, &work));
    printf("\"copy_tb_s\": %.3f, ", 2 * bytes / seconds(launch_copy, &work) * 1e-12);
    printf("\"read_tb_s\": %.3f}\n", bytes / seconds(launch_read, &work) * 1e-12);
    CHECK(cudaFree(work.from));
    CHECK(cudaFree(work.to));
    CHECK(cudaFree(work.sink));
    return 0;
}
