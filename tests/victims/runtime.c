/* A CUDA runtime in miniature: calls the driver as cudart does and prints which copy was called.
 * -DCOPY="\"a\""; -DWITHOUT_DRIVER for one that never calls the driver; -DQUIET prints nothing. */
#define _GNU_SOURCE
#define LOOKUP_PROC_V2
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

#ifdef QUIET
#define printf(...) (void)0
#endif

static int ready;

/* In a forked child the driver returns an error, and so does cudart. */
static int start(void) {
    static CUcontext context;
    if (!ready++ && (!open_driver() || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0))) abort();
    return cuCtxSetCurrent(context);
}

EXPORT int cudaMalloc(void **address, size_t bytes) {
    printf("cudaMalloc of %s\n", COPY);
#ifdef WITHOUT_DRIVER
    *address = malloc(bytes);
    return 0;
#else
    CUdeviceptr out = 0;
    int result = start();
    if (!result) result = cuMemAlloc_v2(&out, bytes);
    *address = (void *)(uintptr_t)out;
    return result;
#endif
}

EXPORT int cudaFree(void *address) {
    printf("cudaFree of %s\n", COPY);
#ifdef WITHOUT_DRIVER
    free(address);
    return 0;
#else
    return cuMemFree_v2((CUdeviceptr)(uintptr_t)address);
#endif
}

EXPORT int cudaMallocAsync(void **address, size_t bytes, void *stream) {
    printf("cudaMallocAsync of %s\n", COPY);
    CUdeviceptr out = 0;
    int result = start();
    if (!result) result = cuMemAllocAsync(&out, bytes, stream);
    *address = (void *)(uintptr_t)out;
    return result;
}
