/* The kernel dialect for nvcc: element types, wide accesses and the launch. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>

#if defined(ELEMENT_BF16) && ELEMENT_BF16
typedef __nv_bfloat16 element_t;
typedef __nv_bfloat162 element2_t;
#else
typedef __half element_t;
typedef __half2 element2_t;
#endif

#define UNROLL _Pragma("unroll")
#define KERNEL_PARAMS(type)
#define LAUNCH(kernel, grid, block, shared_bytes, params) cuda_launch_(kernel, grid, block, shared_bytes, params, 0)
#define LAUNCH_EARLY(kernel, grid, block, shared_bytes, params) cuda_launch_(kernel, grid, block, shared_bytes, params, 1)
#define cuda_launch_(kernel, grid, block, shared_bytes, params, early)                                                 \
    do {                                                                                                               \
        void *arguments_[] = {(void *)&(params)};                                                                      \
        cuda_launch(#kernel, (const void *)(kernel), (grid), (block), (int64_t)(shared_bytes), arguments_, early);     \
    } while (0)
#define SHARED(type, name)                                                                                             \
    extern __shared__ uint4 shared_memory_[];                                                                          \
    type *name = (type *)shared_memory_

extern "C" {
/* Launches a kernel, or ends the program with a line that says what does not fit.  early: from sm_90 on, its blocks may
 * start before the kernel before it has ended (programmatic dependent launch). */
void cuda_launch(const char *name, const void *kernel, int64_t blocks, int threads, int64_t shared_bytes,
                 void **arguments, int early);
}

#define LOAD4(address) (*(const unsigned *)(address))
#define LOAD16(address) (*(const uint4 *)(address))
#define STORE4(address, value) (*(unsigned *)(address) = (value))
#define STORE16(address, value) (*(uint4 *)(address) = (value))

#if defined(ELEMENT_BF16) && ELEMENT_BF16
static __device__ inline float to_float(element_t e)
{
    return __bfloat162float(e);
}
static __device__ inline element_t to_element(float x)
{
    return __float2bfloat16_rn(x);
}
static __device__ inline float2 unpack4(unsigned v)
{
    element2_t pair;
    memcpy(&pair, &v, sizeof pair);
    return __bfloat1622float2(pair);
}
static __device__ inline unsigned pack4(float low, float high)
{
    const element2_t pair = __floats2bfloat162_rn(low, high);
    unsigned v;
    memcpy(&v, &pair, sizeof v);
    return v;
}
#else
static __device__ inline float to_float(element_t e)
{
    return __half2float(e);
}
static __device__ inline element_t to_element(float x)
{
    return __float2half_rn(x);
}
static __device__ inline float2 unpack4(unsigned v)
{
    element2_t pair;
    memcpy(&pair, &v, sizeof pair);
    return __half22float2(pair);
}
static __device__ inline unsigned pack4(float low, float high)
{
    const element2_t pair = __floats2half2_rn(low, high);
    unsigned v;
    memcpy(&v, &pair, sizeof v);
    return v;
}
#endif

static __device__ inline void unpack16(uint4 v, float out[8])
{
    const float2 a = unpack4(v.x), b = unpack4(v.y), c = unpack4(v.z), d = unpack4(v.w);
    out[0] = a.x, out[1] = a.y, out[2] = b.x, out[3] = b.y, out[4] = c.x, out[5] = c.y, out[6] = d.x, out[7] = d.y;
}

#endif
