/* The backend: where device memory lives and kernels run.  common/simt/ (any CPU) and common/cuda/ (an NVIDIA GPU)
 * implement it; neither knows anything of attention.  What fails ends the program with one line on stderr:
 * exit 1 for an error that the executor found in a kernel, 2 for a size that does not fit, 3 for a CUDA error. */
#ifndef BACKEND_H
#define BACKEND_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DeviceInfo {
    char name[256];       /* "NVIDIA H200, sm_90, driver 13.0" or "CPU executor, 2 threads" */
    int is_gpu;
    int multiprocessors;  /* 1 on the CPU: a split count chosen from it must not depend on the machine */
    int64_t memory_free;  /* bytes */
    int64_t shared_limit; /* bytes of dynamic shared memory that a block may have */
} DeviceInfo;

/* What the CPU executor counted since counters_reset, summed over kernels; a warp instruction is one request. */
typedef struct Counters {
    int64_t load_requests, load_sectors, load_bytes;    /* global memory; sectors of 32 bytes moved, bytes asked */
    int64_t store_requests, store_sectors, store_bytes;
    int64_t cp_async;                                   /* copies to shared memory; what they read is counted as loads */
    int64_t shared_load_requests, shared_load_wavefronts; /* shared memory; ldmatrix included, cp.async not */
    int64_t shared_store_requests, shared_store_wavefronts;
    int64_t shared_excess;                              /* wavefronts beyond what would be needed without bank conflicts */
    int64_t ldmatrix, mma, shuffles;                    /* warp instructions */
    int64_t barriers;                                   /* __syncthreads, once a block */
    int64_t errors;                                     /* errors that the observer reported */
    int observed;                                       /* 0: nothing was counted (GPU, --no-observe) */
} Counters;

void backend_init(int observe);                           /* before anything else; observe: count and check accesses */
void backend_observe_blocks(int64_t blocks);               /* only so many of each kernel's, evenly spread; 0: all */
DeviceInfo backend_info(void);
void *backend_alloc(int64_t bytes, const char *name);     /* name: for messages; contents are undefined */
void backend_free(void *device);
void backend_upload(void *device, const void *host, int64_t bytes);
void backend_download(void *host, const void *device, int64_t bytes);
void backend_synchronize(void);                           /* waits, and reports what the kernels did wrong */
Counters backend_counters(void);
void backend_counters_reset(void);
void backend_profile(FILE *out, int cost_first);          /* the counts by source line, in file order or dearest first */
void backend_profile_json(FILE *out);                     /* the same as a JSON array */
void backend_trace(int on);                               /* before a launch: remember what one thread does, in order */
void backend_trace_print(FILE *out);                      /* what was remembered */

/* Median time in milliseconds of `runs` launches after a warm-up, each with the L2 cache flushed before it if
 * flush_l2.  GPU only: the CPU executor never prints a speed and returns -1. */
double backend_time(void (*launch)(void *context), void *context, int runs, int flush_l2);

#ifdef __cplusplus
}
#endif
#endif
