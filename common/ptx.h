/* One wrapper for each PTX instruction that CUDA C has no name for.  On a GPU it is that instruction; in the executor a
 * call that does the same (common/simt/warp.c).  Sections: PTX ISA 9.0.  From sm_80 on, unless a line says otherwise. */
#ifndef PTX_H
#define PTX_H

#include "cuda_c.h"

/* 2^x, relative error below 2^-22; 2^-inf = 0.  ex2.approx.ftz.f32, section 9.7.3; any GPU, as are the next two. */
static __device__ inline float exp2_approx(float x);
/* 1 / x for a normal x, relative error below 2^-23.  rcp.approx.ftz.f32, the same section. */
static __device__ inline float reciprocal_approx(float x);
/* x, of which the compiler knows nothing: what is computed from it is computed where it stands, again in each round of a
 * loop, instead of once before the loop into registers that are then short.  No instruction. */
static __device__ inline int opaque(int x);

/* Four 8 x 8 matrices of 16-bit elements from shared memory, one a register.  Lane i gives the address of row i % 8 of
 * matrix i / 8 (16 bytes, 16-byte aligned); it gets elements [lane / 4][2 * (lane % 4) + {0, 1}] of each matrix,
 * the lower column in the lower half.  All 32 lanes.  ldmatrix.sync.aligned.m8n8.x4.shared.b16, section 9.7.14. */
static __device__ inline uint4 ldmatrix_x4(const element_t *row);
/* The same of the transposed matrices: elements [2 * (lane % 4) + {0, 1}][lane / 4].  ldmatrix ... .trans. */
static __device__ inline uint4 ldmatrix_x4_trans(const element_t *row);

/* D += A B: A 16 x 16, B 16 x 8, 16-bit; D 16 x 8, f32.  With g = lane / 4, c = 2 * (lane % 4), pairs of columns:
 *   a.x [g][c..]  a.y [g + 8][c..]  a.z [g][c + 8..]  a.w [g + 8][c + 8..];   b0 [c..][g]  b1 [c + 8..][g] (pairs of rows)
 *   d[0], d[1] [g][c..]  d[2], d[3] [g + 8][c..].   mma.sync.aligned.m16n8k16.row.col.f32, section 9.7.14. */
static __device__ inline void mma_m16n8k16(float d[4], uint4 a, unsigned b0, unsigned b1);

/* Starts a copy of 16 bytes from global to shared memory, both 16-byte aligned; bytes is 16, or 0 to fill with zeros
 * without reading.  cp.async.cg.shared.global, section 9.7.9.25. */
static __device__ inline void cp_async16(void *shared, const void *global, int bytes);
/* Closes the group of copies that this thread has started since the last one.  cp.async.commit_group. */
static __device__ inline void cp_async_commit(void);
/* cp_async_wait(n): all but the n newest groups of this thread have landed, for this thread.  cp.async.wait_group. */

/* In a kernel that LAUNCH_EARLY started: the kernel before it has ended, and what it wrote can be read.
 * griddepcontrol.wait, section 9.7.13, from sm_90 on; before that, a kernel starts when the one before it has ended. */
static __device__ inline void wait_for_previous_kernel(void);

#if defined(__CUDACC__)

static __device__ inline float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline int opaque(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

static __device__ inline uint4 ldmatrix_x4(const element_t *row)
{
    uint4 m;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w)
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
    return m;
}

static __device__ inline uint4 ldmatrix_x4_trans(const element_t *row)
{
    uint4 m;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w)
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
    return m;
}

#if defined(ELEMENT_BF16) && ELEMENT_BF16
#define PTX_ELEMENT "bf16"
#else
#define PTX_ELEMENT "f16"
#endif
static __device__ inline void mma_m16n8k16(float d[4], uint4 a, unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32." PTX_ELEMENT "." PTX_ELEMENT ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

static __device__ inline void cp_async16(void *shared, const void *global, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

static __device__ inline void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

#define cp_async_wait(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")

static __device__ inline void wait_for_previous_kernel(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#else

typedef struct SimtFloat4 {
    float d[4];
} SimtFloat4;
SIMT_MEETING uint4 simt_ldmatrix(const void *row, int transpose);
SIMT_MEETING SimtFloat4 simt_mma(int bf16, SimtFloat4 d, uint4 a, unsigned b0, unsigned b1);
void simt_cp_async(void *shared, const void *global, int bytes);
void simt_cp_async_commit(void);
void simt_cp_async_wait(int groups);
void simt_wait_for_previous_kernel(void);

static __device__ inline float exp2_approx(float x)
{
    return exp2f(x);
}
static __device__ inline int opaque(int x)
{
    return x;
}
static __device__ inline float reciprocal_approx(float x)
{
    return 1 / x;
}
static __device__ inline uint4 ldmatrix_x4(const element_t *row)
{
    return simt_ldmatrix(row, 0);
}
static __device__ inline uint4 ldmatrix_x4_trans(const element_t *row)
{
    return simt_ldmatrix(row, 1);
}
static __device__ inline void mma_m16n8k16(float d[4], uint4 a, unsigned b0, unsigned b1)
{
#if defined(ELEMENT_BF16) && ELEMENT_BF16
    const int bf16 = 1;
#else
    const int bf16 = 0;
#endif
    const SimtFloat4 before = {{d[0], d[1], d[2], d[3]}}, after = simt_mma(bf16, before, a, b0, b1);
    d[0] = after.d[0], d[1] = after.d[1], d[2] = after.d[2], d[3] = after.d[3];
}
static __device__ inline void cp_async16(void *shared, const void *global, int bytes)
{
    simt_cp_async(shared, global, bytes);
}
static __device__ inline void cp_async_commit(void)
{
    simt_cp_async_commit();
}
#define cp_async_wait(groups) simt_cp_async_wait(groups)
static __device__ inline void wait_for_previous_kernel(void)
{
    simt_wait_for_previous_kernel();
}

#endif
#endif
