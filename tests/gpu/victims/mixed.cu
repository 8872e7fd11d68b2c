// One program on both APIs, linked with libcuda and cudart: each may free what the other allocated.
#include "victim.h"

#include <cuda.h>
#include <cuda_runtime.h>

static uint64_t number(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

// Whichever function frees it, freed memory is not a leak.
CASE(mixed_frees) {
    void *runtime, *ordered, *ordered_too, *pinned;
    CUdeviceptr driver, driver_ordered;
    size_t pitch;
    OK(cudaMalloc(&runtime, 1000));
    OK(cuMemFree((CUdeviceptr)runtime));
    OK(cudaMallocPitch(&runtime, &pitch, 1000, 10));
    OK(cuMemFree((CUdeviceptr)runtime));
    OK(cuMemAlloc(&driver, 2000));
    OK(cudaFree((void *)driver));
    OK(cudaMallocAsync(&ordered, 3000, 0));
    OK(cudaMallocAsync(&ordered_too, 3000, 0));
    OK(cuMemAllocAsync(&driver_ordered, 3000, NULL));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(ordered));
    OK(cuMemFree((CUdeviceptr)ordered_too));
    OK(cudaFreeAsync((void *)driver_ordered, 0));
    OK(cudaMallocHost(&pinned, 4000));
    OK(cuMemFreeHost(pinned));
    OK(cuMemHostAlloc(&pinned, 5000, 0));
    OK(cudaFreeHost(pinned));
}

typedef CUresult (*MemAlloc)(CUdeviceptr *, size_t);
typedef CUresult (*MemFree)(CUdeviceptr);

static void *driver_function(const char *name) {
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
    return function;
}

// Driver functions looked up through the runtime are recorded too.
CASE(entry_point) {
    CUdeviceptr kept, freed;
    OK(cudaFree(0));
    MemAlloc allocate = (MemAlloc)driver_function("cuMemAlloc");
    MemFree release = (MemFree)driver_function("cuMemFree");
    OK(allocate(&kept, 6000)); // site: entry_point
    OK(allocate(&freed, 7000));
    OK(release(freed));
    live("entry_point", "device", kept, 6000, 6000);
}

// And those looked up through the driver itself.
CASE(proc_address) {
    CUdeviceptr kept, freed;
    MemAlloc allocate;
    MemFree release;
    CUdriverProcAddressQueryResult found;
    OK(cudaFree(0));
    OK(cuGetProcAddress("cuMemAlloc", (void **)&allocate, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
    OK(cuGetProcAddress("cuMemFree", (void **)&release, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
    OK(allocate(&kept, 8000)); // site: proc_address
    OK(allocate(&freed, 9000));
    OK(release(freed));
    live("proc_address", "device", kept, 8000, 8000);
}

// With a second context current, a runtime allocation belongs to it and is freed with it.
CASE(foreign_context) {
    CUcontext context;
    void *gone, *kept;
    OK(cudaMalloc(&kept, 10000)); // site: foreign_context
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&context, NULL, 0, 0));
#else
    OK(cuCtxCreate(&context, 0, 0));
#endif
    OK(cudaMalloc(&gone, 20000));
    OK(cuCtxDestroy(context));
    live("foreign_context", "device", number(kept), 10000, 10000);
}

static const Case cases[] = {ENTRY(mixed_frees), ENTRY(entry_point), ENTRY(proc_address), ENTRY(foreign_context), {NULL, NULL}};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
