/* Empties the L2 cache before a timed launch.  memory: `bytes` zeros, several times the cache, that nobody else uses.
 * It is read and not written: lines that a write leaves in the cache have to go out to memory while the timed kernel
 * reads, 7 to 10 us on an H200. */
#ifndef FLUSH_H
#define FLUSH_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C"
#endif
cudaError_t cuda_flush_l2(const void *memory, size_t bytes);

#endif
