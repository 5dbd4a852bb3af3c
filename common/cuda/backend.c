/* The backend on an NVIDIA GPU: the CUDA runtime, with every error checked and explained. */
#include "../backend.h"
#include "flush.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call) check((call), #call, __FILE__, __LINE__)

static const char *hint(cudaError_t error)
{
    switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError: return "no usable GPU; make ... BACKEND=cpu runs the same kernel without one";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion: return "built for another GPU; rebuild with make ... ARCH=native";
    case cudaErrorMemoryAllocation: return "too little GPU memory; choose smaller --batch, --heads or lengths";
    case cudaErrorLaunchOutOfResources: return "too many registers for a block; choose a smaller BLOCK_N, ROW_TILES or WARPS";
    default: return "make ... BACKEND=cpu names the line of a wrong access; so does compute-sanitizer";
    }
}

static void check(cudaError_t error, const char *expression, const char *file, int line)
{
    if (error == cudaSuccess) return;
    const char *name = strrchr(file, '/');
    fprintf(stderr, "CUDA error %s (%s) in %s at %s:%d: %s\n", cudaGetErrorName(error), cudaGetErrorString(error),
            expression, name ? name + 1 : file, line, hint(error));
    exit(3);
}

void backend_init(int observe)
{
    (void)observe; /* the observer lives in the CPU executor */
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(0));
}

void backend_observe_blocks(int64_t blocks)
{
    (void)blocks;
}

DeviceInfo backend_info(void)
{
    DeviceInfo info;
    struct cudaDeviceProp prop;
    size_t free_bytes, total_bytes;
    int driver = 0, limit = 0;
    memset(&info, 0, sizeof info);
    CHECK(cudaGetDeviceProperties(&prop, 0));
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    snprintf(info.name, sizeof info.name, "%.200s, sm_%d%d, CUDA driver %d.%d", prop.name, prop.major, prop.minor,
             driver / 1000, driver % 1000 / 10);
    info.is_gpu = 1;
    info.multiprocessors = prop.multiProcessorCount;
    info.memory_free = (int64_t)free_bytes;
    info.shared_limit = limit;
    return info;
}

void *backend_alloc(int64_t bytes, const char *name)
{
    void *device = NULL;
    if (cudaMalloc(&device, (size_t)bytes) != cudaSuccess) {
        fprintf(stderr, "%s: the GPU has no %lld bytes of memory left: %s\n", name, (long long)bytes,
                hint(cudaErrorMemoryAllocation));
        exit(3);
    }
    CHECK(cudaMemset(device, 0xff, (size_t)bytes)); /* NaN in every floating-point type */
    return device;
}

void backend_free(void *device)
{
    CHECK(cudaFree(device));
}

void backend_upload(void *device, const void *host, int64_t bytes)
{
    CHECK(cudaMemcpy(device, host, (size_t)bytes, cudaMemcpyHostToDevice));
}

void backend_download(void *host, const void *device, int64_t bytes)
{
    CHECK(cudaMemcpy(host, device, (size_t)bytes, cudaMemcpyDeviceToHost));
}

void backend_synchronize(void)
{
    CHECK(cudaDeviceSynchronize());
}

Counters backend_counters(void)
{
    const Counters none = {0};
    return none;
}

void backend_counters_reset(void)
{
}

void backend_profile(FILE *out, int cost_first)
{
    (void)cost_first;
    fprintf(out, "\nno counts by source line on a GPU: build with BACKEND=cpu, or use Nsight Compute\n");
}

void backend_profile_json(FILE *out)
{
    fprintf(out, "null");
}

void backend_trace(int on)
{
    (void)on;
}

void backend_trace_print(FILE *out)
{
    fprintf(out, "no trace on a GPU: build with BACKEND=cpu\n");
}

void cuda_launch(const char *name, const void *kernel, int64_t blocks, int threads, int64_t shared_bytes,
                 void **arguments, int early)
{
    int limit = 0, major = 0;
    CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (blocks < 1 || blocks > INT32_MAX) {
        fprintf(stderr, "%s: a launch of %lld blocks: a grid has 1 to 2147483647; give fewer rows, heads or splits\n",
                name, (long long)blocks);
        exit(2);
    }
    if (shared_bytes > limit) {
        fprintf(stderr, "%s: a block needs %lld bytes of shared memory, this GPU allows %d: choose a smaller BLOCK_N, WARPS, "
                "ROW_TILES or STAGES\n", name, (long long)shared_bytes, limit);
        exit(3);
    }
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
    cudaLaunchAttribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch;
    memset(&launch, 0, sizeof launch);
    launch.gridDim.x = (unsigned)blocks, launch.gridDim.y = launch.gridDim.z = 1;
    launch.blockDim.x = (unsigned)threads, launch.blockDim.y = launch.blockDim.z = 1;
    launch.dynamicSmemBytes = (size_t)shared_bytes;
    launch.attrs = &attribute, launch.numAttrs = early && major >= 9;
    check(cudaLaunchKernelExC(&launch, kernel, arguments), name, __FILE__, __LINE__);
}

static int by_time(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double backend_time(void (*launch)(void *context), void *context, int runs, int flush_l2)
{
    cudaEvent_t start, stop;
    struct cudaDeviceProp prop;
    float *times = malloc((size_t)runs * sizeof *times);
    if (!times) return -1;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    const size_t flush_bytes = 4 * (size_t)prop.l2CacheSize;
    void *flush = backend_alloc((int64_t)flush_bytes, "L2 flush");
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    CHECK(cudaMemset(flush, 0, flush_bytes));
    for (int run = -3; run < runs; run++) { /* three to warm up */
        if (flush_l2) CHECK(cuda_flush_l2(flush, flush_bytes));
        CHECK(cudaEventRecord(start, 0));
        launch(context);
        CHECK(cudaEventRecord(stop, 0));
        CHECK(cudaEventSynchronize(stop));
        if (run >= 0) CHECK(cudaEventElapsedTime(&times[run], start, stop));
    }
    qsort(times, (size_t)runs, sizeof *times, by_time);
    const double median = runs % 2 ? times[runs / 2] : 0.5 * (times[runs / 2 - 1] + times[runs / 2]);
    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(stop));
    backend_free(flush);
    free(times);
    return median;
}
