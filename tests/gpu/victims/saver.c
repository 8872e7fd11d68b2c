// A preload built like torch_memory_saver: it wraps cudaMalloc and cudaFree by RTLD_NEXT. Within a region it returns physical
// memory that it maps itself, so that it can release that memory (pause) and map other memory at the same address (resume).
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
enum { MOST = 64 };

static struct { CUdeviceptr at; size_t bytes; CUmemGenericAllocationHandle memory; } blocks[MOST];
static int count, inside;

EXPORT void saver_region(int begin) { inside = begin; }

static CUmemAllocationProp properties(void) {
    CUdevice device = 0;
    cuCtxGetDevice(&device);
    CUmemAllocationProp made = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    made.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    made.location.id = device;
    return made;
}

static CUresult back(int nth) {
    CUmemAllocationProp wanted = properties();
    CUmemAccessDesc access = {.location = wanted.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = cuMemCreate(&blocks[nth].memory, blocks[nth].bytes, &wanted, 0);
    if (!result) result = cuMemMap(blocks[nth].at, blocks[nth].bytes, 0, blocks[nth].memory, 0);
    return result ? result : cuMemSetAccess(blocks[nth].at, blocks[nth].bytes, &access, 1);
}

static CUresult away(int nth) {
    CUresult result = cuMemUnmap(blocks[nth].at, blocks[nth].bytes);
    return result ? result : cuMemRelease(blocks[nth].memory);
}

EXPORT cudaError_t cudaMalloc(void **address, size_t bytes) {
    if (!inside || count == MOST) {
        cudaError_t (*next)(void **, size_t) = (cudaError_t(*)(void **, size_t))dlsym(RTLD_NEXT, "cudaMalloc");
        return next ? next(address, bytes) : cudaErrorSymbolNotFound;
    }
    CUmemAllocationProp wanted = properties();
    size_t step = 2 << 20;
    cuMemGetAllocationGranularity(&step, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    blocks[count].bytes = (bytes + step - 1) / step * step;
    if (cuMemAddressReserve(&blocks[count].at, blocks[count].bytes, 0, 0, 0) || back(count)) return cudaErrorMemoryAllocation;
    *address = (void *)(uintptr_t)blocks[count++].at;
    return cudaSuccess;
}

EXPORT cudaError_t cudaFree(void *address) {
    for (int i = 0; i < count; i++)
        if (address && blocks[i].at == (CUdeviceptr)(uintptr_t)address) {
            if (away(i) || cuMemAddressFree(blocks[i].at, blocks[i].bytes)) return cudaErrorUnknown;
            blocks[i] = blocks[--count];
            return cudaSuccess;
        }
    cudaError_t (*next)(void *) = (cudaError_t(*)(void *))dlsym(RTLD_NEXT, "cudaFree");
    return next ? next(address) : cudaErrorSymbolNotFound;
}

// Bytes that were released; negative: an error.
EXPORT long long saver_pause(void) {
    long long bytes = 0;
    for (int i = 0; i < count; bytes += blocks[i++].bytes)
        if (away(i)) return -1;
    return bytes;
}

EXPORT int saver_resume(void) {
    for (int i = 0; i < count; i++)
        if (back(i)) return -1;
    return 0;
}
