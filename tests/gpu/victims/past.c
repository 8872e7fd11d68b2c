// A library that uses CUDA by itself, however it is loaded. With RUNTIME it calls a runtime that is linked into it, else the driver.
#include "victim.h"

#ifdef RUNTIME
#include <cuda_runtime_api.h>

static __attribute__((noinline)) uint64_t leaks(void) {
    void *freed, *kept;
    OK(cudaMalloc(&freed, 2000));
    OK(cudaMalloc(&kept, 1000)); // site: past_runtime
    OK(cudaFree(freed));
    return (uint64_t)(uintptr_t)kept;
}
#define LABEL "past_runtime"
#else
#include <cuda.h>

static __attribute__((noinline)) uint64_t leaks(void) {
    CUdeviceptr freed, kept;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&freed, 2000));
    OK(cuMemAlloc(&kept, 1000)); // site: past_driver
    OK(cuMemFree(freed));
    return kept;
}
#define LABEL "past_driver"
#endif

__attribute__((visibility("default"))) void run_past(void) { live(LABEL, "device", leaks(), 1000, 1000); }
