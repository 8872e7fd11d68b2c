/* A library with the two functions of a pluggable allocator, which takes parts of one large block. */
#include "cuda.h"
#include <stddef.h>
#include <stdint.h>

static CUdeviceptr at, end;

void *my_malloc(size_t bytes, int device, void *stream) {
    (void)device, (void)stream;
    if (!at) {
        CUdevice first;
        CUcontext context;
        if (cuInit(0) || cuDeviceGet(&first, 0) || cuDevicePrimaryCtxRetain(&context, first) || cuCtxSetCurrent(context)) return NULL;
        if (cuMemAlloc_v2(&at, 1 << 20)) return NULL;
        end = at + (1 << 20);
    }
    if (bytes > end - at) return NULL;
    CUdeviceptr block = at;
    at += (bytes + 511) / 512 * 512;
    return (void *)(uintptr_t)block;
}

void my_free(void *address, size_t bytes, int device, void *stream) {
    (void)address, (void)bytes, (void)device, (void)stream;
}
