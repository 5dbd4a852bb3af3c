/* The dialect of the kernel files: what CUDA C++ (nvcc) and C11 (gcc, clang) both understand, and the few
 * names that make one source text mean the same to both.  A kernel file includes nothing else from CUDA.
 *
 *   __global__ void k(const Params p)   a kernel; it takes one parameter struct, by value
 *   KERNEL_PARAMS(Params)               once for each parameter struct type, before the first LAUNCH
 *   LAUNCH(k, blocks, threads, bytes, p)  runs it: numbers of blocks and of a block's threads, bytes of shared memory
 *   LAUNCH_EARLY(k, ...)                the same, right after another LAUNCH: the kernel's blocks may start before that one
 *                                       has ended; it must call wait_for_previous_kernel() before it reads its results
 *   SHARED(type, name)                  type *name: the block's dynamic shared memory, 16-byte aligned
 *   element_t, to_float, to_element     the 16-bit input type (f16 or bf16, chosen by make DTYPE=...)
 *   LOAD16(address), unpack16           one 16-byte load; its eight elements as floats
 *   LOAD4(address), unpack4, pack4      one 4-byte load; its two elements as floats; two floats as two elements
 *   STORE16(address, x), STORE4         the stores
 *   UNROLL for (...)                    the compiler writes the rounds of the loop out, so that its arrays can be registers
 *   threadIdx blockIdx __syncthreads() __syncwarp() __shfl_sync() __shfl_xor_sync() __any_sync()   as in CUDA
 *
 * The rest of CUDA that a step needs, one wrapper for each PTX instruction, is in ptx.h. */
#ifndef CUDA_C_H
#define CUDA_C_H

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { WARP_SIZE = 32 };
#define FULL_WARP 0xffffffffu /* the mask of all 32 lanes */

#if defined(__CUDACC__)
#include "cuda/device.h"
#else
#include "simt/device.h"
#endif

#endif
