/* Another tool's preload, built like torch_memory_saver: it wraps cudaMalloc and cudaFree by RTLD_NEXT. Within a region it
 * returns physical memory that it maps itself, so that it can release that memory (pause) and map other memory at the same
 * address (resume). */
#include "cuda.h"
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))
enum { STEP = 2 << 20, MOST = 16 };

static struct { CUdeviceptr at; size_t bytes; CUhandle memory; } blocks[MOST];
static int count, inside, given_back;

EXPORT void saver_region(int begin) { inside = begin; }

static CUhandle make(size_t bytes) {
    CUphysicalProps properties = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    CUhandle memory = 0;
    return cuMemCreate(&memory, bytes, &properties, 0) == CUDA_SUCCESS ? memory : 0;
}

EXPORT int cudaMalloc(void **address, size_t bytes) {
    if (!inside || count == MOST) {
        int (*next)(void **, size_t) = dlsym(RTLD_NEXT, "cudaMalloc");
        return next ? next(address, bytes) : 999;
    }
    bytes = (bytes + STEP - 1) / STEP * STEP;
    CUdeviceptr at = 0;
    CUhandle memory = make(bytes);
    if (!memory || cuMemAddressReserve(&at, bytes, 0, 0, 0) || cuMemMap(at, bytes, 0, memory, 0)) return 2;
    blocks[count].at = at, blocks[count].bytes = bytes, blocks[count++].memory = memory;
    *address = (void *)(uintptr_t)at;
    return 0;
}

EXPORT int cudaFree(void *address) {
    for (int i = 0; i < count; i++)
        if (blocks[i].at == (CUdeviceptr)(uintptr_t)address) {
            cuMemUnmap(blocks[i].at, blocks[i].bytes);
            cuMemRelease(blocks[i].memory);
            cuMemAddressFree(blocks[i].at, blocks[i].bytes);
            blocks[i] = blocks[--count];
            return 0;
        }
    int (*next)(void *) = dlsym(RTLD_NEXT, "cudaFree");
    return next ? next(address) : 999;
}

/* It prints what it releases and maps again, as the real one does in its log. */
EXPORT int saver_pause(void) {
    int result = 0;
    for (int i = 0; i < count && !result; i++) {
        result = cuMemUnmap(blocks[i].at, blocks[i].bytes);
        if (!result) result = cuMemRelease(blocks[i].memory);
        given_back += blocks[i].bytes;
    }
    printf("saver: released %d bytes of %d blocks\n", given_back, count);
    return result;
}

EXPORT int saver_resume(void) {
    int result = 0;
    for (int i = 0; i < count && !result; i++) {
        blocks[i].memory = make(blocks[i].bytes);
        result = blocks[i].memory ? cuMemMap(blocks[i].at, blocks[i].bytes, 0, blocks[i].memory, 0) : 2;
    }
    return result;
}
