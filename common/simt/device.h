/* The kernel dialect for a C compiler: CUDA's names, carried out by the executor (common/simt/).
 * Every __sync, __shfl and matrix instruction is a call at which the 32 lanes of a warp meet. */
#ifndef SIMT_DEVICE_H
#define SIMT_DEVICE_H

#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

typedef struct element_t {
    uint16_t bits;
} element_t;
typedef struct uint3 {
    unsigned x, y, z;
} uint3;
typedef struct float2 {
    float x, y;
} float2;
typedef struct uint2 {
    unsigned x, y;
} __attribute__((aligned(8), may_alias)) uint2;
typedef struct uint4 {
    unsigned x, y, z, w;
} __attribute__((aligned(16), may_alias)) uint4;
typedef unsigned simt_uint __attribute__((may_alias));

#define __global__ static __attribute__((noinline, unused))
#define __device__ __attribute__((always_inline, unused))
#define __host__
#define __launch_bounds__(...)
#define UNROLL

/* Calls a kernel through an untyped pointer; one is made for each parameter struct. */
#define KERNEL_PARAMS(type)                                                                                            \
    static inline void simt_call(void (*kernel)(void), const void *params)                                             \
    {                                                                                                                  \
        ((void (*)(type))kernel)(*(const type *)params);                                                               \
    }
#define LAUNCH(kernel, grid, block, shared_bytes, params)                                                              \
    simt_launch(#kernel, simt_call, (void (*)(void))(kernel), &(params), (grid), (block), (shared_bytes), 0)
#define LAUNCH_EARLY(kernel, grid, block, shared_bytes, params)                                                        \
    simt_launch(#kernel, simt_call, (void (*)(void))(kernel), &(params), (grid), (block), (shared_bytes), 1)
#define SHARED(type, name) type *name = (type *)simt_shared()

/* Blocks until the kernel has run.  The grid is one-dimensional.  early: on a GPU the kernel before might still run, so a
 * thread that has not waited for it races with it. */
void simt_launch(const char *name, void (*call)(void (*)(void), const void *), void (*kernel)(void), const void *params,
                 int64_t blocks, int threads, int64_t shared_bytes, int early);

/* const: the answers cannot change while a thread runs, so the compiler may keep them. */
uint3 simt_thread_index(void) __attribute__((const));
uint3 simt_block_index(void) __attribute__((const));
uint3 simt_block_dim(void) __attribute__((const));
uint3 simt_grid_dim(void) __attribute__((const));
void *simt_shared(void) __attribute__((const));
#define threadIdx simt_thread_index()
#define blockIdx simt_block_index()
#define blockDim simt_block_dim()
#define gridDim simt_grid_dim()

/* Two calls in the branches of an if must stay two: lanes that come to different ones do not meet. */
#ifdef __clang__
#define SIMT_MEETING __attribute__((nomerge))
#else
#define SIMT_MEETING
#endif
SIMT_MEETING void simt_syncthreads(void);
SIMT_MEETING void simt_syncwarp(unsigned mask);
SIMT_MEETING unsigned simt_shfl(unsigned mask, unsigned value, int source);
SIMT_MEETING int simt_any(unsigned mask, int predicate);
#define __syncthreads() simt_syncthreads()
#define __syncwarp(...) simt_syncwarp((unsigned)(__VA_ARGS__ + 0)) /* no mask: 0, which the executor takes as all */

/* Values of 4 bytes: float, int, unsigned. */
#define simt_shuffle(mask, value, source)                                                                              \
    ({                                                                                                                 \
        union {                                                                                                        \
            __typeof__((value) + 0) own;                                                                               \
            unsigned bits;                                                                                             \
        } simt_value = {value};                                                                                        \
        _Static_assert(sizeof simt_value.own == 4, "a shuffle here hands on 4 bytes");                                 \
        simt_value.bits = simt_shfl((mask), simt_value.bits, (source) & (WARP_SIZE - 1));                              \
        simt_value.own;                                                                                                \
    })
#define simt_lane() ((int)(threadIdx.x % WARP_SIZE))
#define __shfl_sync(mask, value, source) simt_shuffle(mask, value, source)
#define __shfl_xor_sync(mask, value, lanes) simt_shuffle(mask, value, simt_lane() ^ (lanes))
#define __any_sync(mask, predicate) simt_any((mask), (predicate))

static __device__ inline unsigned simt_bits(float x)
{
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
static __device__ inline float simt_float(unsigned bits)
{
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

/* A vector type, not a struct: a 16-byte access stays one, where a struct may be copied in pieces.  clang takes even a
 * vector apart when its elements are used one by one, unless the access is volatile. */
typedef unsigned simt_uint4 __attribute__((vector_size(16), may_alias));
#ifdef __clang__
#define SIMT_WHOLE volatile
#else
#define SIMT_WHOLE
#endif
static __device__ inline uint4 simt_load16(const void *address)
{
    const simt_uint4 v = *(const SIMT_WHOLE simt_uint4 *)address;
    const uint4 value = {v[0], v[1], v[2], v[3]};
    return value;
}
static __device__ inline void simt_store16(void *address, uint4 value)
{
    const simt_uint4 v = {value.x, value.y, value.z, value.w};
    *(SIMT_WHOLE simt_uint4 *)address = v;
}
#define LOAD4(address) (*(const simt_uint *)(address))
#define LOAD16(address) simt_load16(address)
#define STORE4(address, value) (*(simt_uint *)(address) = (value))
#define STORE16(address, value) simt_store16((address), (value))

/* ---- the 16-bit element type: f16 (IEEE binary16) or bf16, exact to float, rounded to nearest even from it ---- */
#if defined(ELEMENT_BF16) && ELEMENT_BF16
static __device__ inline float to_float(element_t e)
{
    return simt_float((unsigned)e.bits << 16);
}
static __device__ inline element_t to_element(float x)
{
    const unsigned bits = simt_bits(x);
    const unsigned rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const element_t e = {(uint16_t)(x == x ? rounded : 0x7fff)};
    return e;
}
#elif defined(__F16C__)
static __device__ inline float to_float(element_t e)
{
    return _cvtsh_ss(e.bits);
}
static __device__ inline element_t to_element(float x)
{
    const element_t e = {_cvtss_sh(x, 0)};
    return e;
}
#elif defined(__ARM_FP16_FORMAT_IEEE)
static __device__ inline float to_float(element_t e)
{
    __fp16 h;
    __builtin_memcpy(&h, &e, sizeof h);
    return (float)h;
}
static __device__ inline element_t to_element(float x)
{
    const __fp16 h = (__fp16)x;
    element_t e;
    __builtin_memcpy(&e, &h, sizeof e);
    return e;
}
#else /* by arithmetic: scaling by 2^112 moves the exponent's bias from 15 to 127, subnormals included */
static __device__ inline float to_float(element_t e)
{
    const unsigned sign = (unsigned)(e.bits & 0x8000) << 16, rest = (unsigned)(e.bits & 0x7fff) << 13;
    if (rest >= 0x0f800000u) return simt_float(sign | 0x70000000u | rest); /* infinity, NaN */
    return simt_float(sign | simt_bits(simt_float(rest) * 0x1p112f));
}
static __device__ inline element_t to_element(float x)
{
    const unsigned bits = simt_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    element_t e = {(uint16_t)(sign | 0x7e00)};
    if (size > 0x7f800000u) return e;
    if (size >= 0x47800000u) e.bits = (uint16_t)(sign | 0x7c00); /* >= 2^16 */
    else if (size < 0x38800000u) /* below 2^-14: adding 0.5 leaves the rounded subnormal in the low bits */
        e.bits = (uint16_t)(sign | (simt_bits(simt_float(size) + 0.5f) - 0x3f000000u));
    else e.bits = (uint16_t)(sign | ((size - 0x38000000u + 0xfff + (size >> 13 & 1)) >> 13));
    return e;
}
#endif

static __device__ inline void unpack16(uint4 v, float out[8])
{
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; i++) {
        const element_t low = {(uint16_t)(words[i] & 0xffff)}, high = {(uint16_t)(words[i] >> 16)};
        out[2 * i] = to_float(low);
        out[2 * i + 1] = to_float(high);
    }
}
static __device__ inline float2 unpack4(unsigned v)
{
    const element_t low = {(uint16_t)(v & 0xffff)}, high = {(uint16_t)(v >> 16)};
    const float2 pair = {to_float(low), to_float(high)};
    return pair;
}
static __device__ inline unsigned pack4(float low, float high)
{
    return (unsigned)to_element(high).bits << 16 | to_element(low).bits;
}

/* In an observed kernel, for the observer: the instructions that compilers make of these it does not see. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1 /* gcc's name for it */
#endif
#endif
#ifdef __SANITIZE_THREAD__
void *__tsan_memcpy(void *to, const void *from, size_t bytes);
void *__tsan_memset(void *to, int value, size_t bytes);
#define memcpy(to, from, bytes) __tsan_memcpy((to), (from), (bytes))
#define memset(to, value, bytes) __tsan_memset((to), (value), (bytes))
#endif

#endif
