// A plain C program on the driver API: linked with libcuda, without the runtime.
#include "victim.h"

#include <cuda.h>

static CUdevice device;

static CUcontext create_context(void) {
    CUcontext context;
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&context, NULL, 0, device));
#else
    OK(cuCtxCreate(&context, 0, device));
#endif
    return context;
}

static CUmemAllocationProp on_device(void) {
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return properties;
}

static size_t granularity(void) {
    size_t bytes;
    CUmemAllocationProp properties = on_device();
    OK(cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return bytes;
}

static uint64_t number(const void *handle) { return (uint64_t)(uintptr_t)handle; }

// ---- every kind of allocation: one is kept, one is freed ----

CASE(cuMemAlloc) {
    CUdeviceptr kept, freed;
    OK(cuMemAlloc(&kept, 1000)); // site: cuMemAlloc
    OK(cuMemAlloc(&freed, 2000));
    OK(cuMemFree(freed));
    live("cuMemAlloc", "device", kept, 1000, 1000);
}

CASE(cuMemAllocPitch) {
    CUdeviceptr kept, freed;
    size_t pitch;
    OK(cuMemAllocPitch(&freed, &pitch, 100, 20, 4));
    OK(cuMemAllocPitch(&kept, &pitch, 1000, 30, 16)); // site: cuMemAllocPitch
    OK(cuMemFree(freed));
    live("cuMemAllocPitch", "pitched", kept, pitch * 30, 1000 * 30);
}

CASE(cuMemAllocHost) {
    void *kept, *freed;
    OK(cuMemAllocHost(&kept, 5000)); // site: cuMemAllocHost
    OK(cuMemAllocHost(&freed, 6000));
    OK(cuMemFreeHost(freed));
    live("cuMemAllocHost", "pinned", number(kept), 5000, 5000);
}

CASE(cuMemHostAlloc) {
    void *kept, *freed;
    OK(cuMemHostAlloc(&kept, 7000, CU_MEMHOSTALLOC_PORTABLE)); // site: cuMemHostAlloc
    OK(cuMemHostAlloc(&freed, 8000, 0));
    OK(cuMemFreeHost(freed));
    live("cuMemHostAlloc", "pinned", number(kept), 7000, 7000);
}

CASE(cuMemAllocManaged) {
    CUdeviceptr kept, freed;
    OK(cuMemAllocManaged(&kept, 90000, CU_MEM_ATTACH_GLOBAL)); // site: cuMemAllocManaged
    OK(cuMemAllocManaged(&freed, 80000, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemFree(freed));
    live("cuMemAllocManaged", "managed", kept, 90000, 90000);
}

CASE(cuArrayCreate) {
    CUarray kept, freed;
    CUDA_ARRAY_DESCRIPTOR shape = {64, 32, CU_AD_FORMAT_FLOAT, 2}, small = {16, 16, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    OK(cuArrayCreate(&kept, &shape)); // site: cuArrayCreate
    OK(cuArrayCreate(&freed, &small));
    OK(cuArrayDestroy(freed));
    live("cuArrayCreate", "array", number(kept), 64 * 32 * 8, 64 * 32 * 8);
}

CASE(cuMemAllocAsync) {
    CUdeviceptr kept, freed;
    OK(cuMemAllocAsync(&kept, 11000, NULL)); // site: cuMemAllocAsync
    OK(cuMemAllocAsync(&freed, 12000, NULL));
    OK(cuMemFreeAsync(freed, NULL));
    OK(cuStreamSynchronize(NULL));
    live("cuMemAllocAsync", "async", kept, 11000, 11000);
}

CASE(kinds) {
    case_cuMemAlloc();
    case_cuMemAllocPitch();
    case_cuMemAllocHost();
    case_cuMemHostAlloc();
    case_cuMemAllocManaged();
    case_cuArrayCreate();
    case_cuMemAllocAsync();
}

// ---- virtual memory management ----

static CUmemGenericAllocationHandle create(size_t bytes) {
    CUmemAllocationProp properties = on_device();
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, bytes, &properties, 0)); // site: vmm
    return handle;
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t bytes) {
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    OK(cuMemMap(address, bytes, 0, handle, 0));
    return address;
}

static void unmap(CUdeviceptr address, size_t bytes) {
    OK(cuMemUnmap(address, bytes));
    OK(cuMemAddressFree(address, bytes));
}

// A handle that is created and never released holds its memory.
CASE(vmm_handle) {
    size_t bytes = granularity();
    live("vmm", "physical", create(bytes), bytes, bytes);
}

// Created, mapped, then unmapped and released in either order: freed. An address range alone holds 0 bytes.
CASE(vmm_clean) {
    size_t bytes = granularity();
    CUdeviceptr range;
    for (int release_first = 0; release_first < 2; release_first++) {
        CUmemGenericAllocationHandle handle = create(bytes);
        CUdeviceptr address = map(handle, bytes);
        if (release_first) OK(cuMemRelease(handle));
        unmap(address, bytes);
        if (!release_first) OK(cuMemRelease(handle));
    }
    OK(cuMemAddressReserve(&range, 64 * bytes, 0, 0, 0));
    fact("range", range);
    fact("range_bytes", 64 * bytes);
}

// Released while mapped, as llama.cpp does: the mapping keeps the memory, and each unmap frees its own.
CASE(vmm_released_while_mapped) {
    size_t bytes = granularity();
    CUdeviceptr address[4];
    for (int i = 0; i < 4; i++) {
        CUmemGenericAllocationHandle handle = create(bytes);
        address[i] = map(handle, bytes);
        OK(cuMemRelease(handle));
    }
    unmap(address[1], bytes);
    fact("physical_bytes", 3 * bytes);
    fact("physical_count", 3);
}

// Mapped at two addresses, the memory is counted once; one unmap of the two frees nothing.
CASE(vmm_mapped_twice) {
    size_t bytes = granularity();
    CUmemGenericAllocationHandle handle = create(bytes), other = create(bytes);
    map(handle, bytes);
    map(handle, bytes);
    map(other, bytes);
    unmap(map(other, bytes), bytes);
    live("vmm", "physical", handle, bytes, bytes);
    live("vmm", "physical", other, bytes, bytes);
}

// A retained handle needs a second release.
CASE(vmm_retained) {
    size_t bytes = granularity();
    CUmemGenericAllocationHandle handle = create(bytes), again;
    CUdeviceptr address = map(handle, bytes);
    OK(cuMemRetainAllocationHandle(&again, (void *)address));
    OK(cuMemRelease(handle));
    unmap(address, bytes);
    fact("physical_bytes", bytes);
    fact("physical_count", 1);
    (void)again;
}

// The second release is refused; the mapping keeps the memory.
CASE(vmm_released_twice) {
    size_t bytes = granularity();
    CUmemGenericAllocationHandle handle = create(bytes);
    map(handle, bytes);
    OK(cuMemRelease(handle));
    fact("second", cuMemRelease(handle));
    fact("physical_bytes", bytes);
    fact("physical_count", 1);
}

// One cuMemUnmap may cover several mappings.
CASE(vmm_unmap_many) {
    size_t bytes = granularity();
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, 3 * bytes, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        CUmemGenericAllocationHandle handle = create(bytes);
        OK(cuMemMap(address + i * bytes, bytes, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    unmap(address, 3 * bytes);
}

// ---- contexts ----

// Destroying one of two contexts frees its memory, except for pool and VMM memory; the other context keeps its own.
CASE(two_contexts) {
    CUdeviceptr gone, ordered, other;
    CUarray array;
    void *pinned;
    size_t pitch, bytes = granularity();
    CUDA_ARRAY_DESCRIPTOR shape = {64, 64, CU_AD_FORMAT_FLOAT, 1};
    CUcontext first = create_context();
    OK(cuMemAlloc(&gone, 10000));
    OK(cuMemAllocPitch(&gone, &pitch, 1000, 10, 4));
    OK(cuArrayCreate(&array, &shape));
    OK(cuMemAllocHost(&pinned, 20000));
    OK(cuMemAllocAsync(&ordered, 30000, NULL)); // site: pool_outlives_context
    OK(cuStreamSynchronize(NULL));
    CUmemGenericAllocationHandle handle = create(bytes);
    CUcontext second = create_context();
    OK(cuMemAlloc(&other, 40000)); // site: second_context
    OK(cuCtxDestroy(first));
    live("pool_outlives_context", "async", ordered, 30000, 30000);
    live("vmm", "physical", handle, bytes, bytes);
    live("second_context", "device", other, 40000, 40000);
    fact("first", number(first));
    fact("second", number(second));
}

// The last release of the primary context frees its memory.
CASE(primary_release) {
    CUcontext primary;
    CUdeviceptr pointer;
    OK(cuCtxPopCurrent(&primary));
    OK(cuDevicePrimaryCtxRelease(device));
    OK(cuDevicePrimaryCtxRetain(&primary, device));
    OK(cuCtxPushCurrent(primary));
    OK(cuMemAlloc(&pointer, 10000));
    OK(cuCtxPopCurrent(&primary));
    OK(cuDevicePrimaryCtxRelease(device));
}

// A request for 64 TiB fails, and is recorded as failed.
CASE(request_fails) {
    CUdeviceptr pointer;
    fact("plain", cuMemAlloc(&pointer, 64ull << 40)); // site: drv_request_fails
}

static const Case cases[] = {
    ENTRY(kinds), ENTRY(vmm_handle), ENTRY(vmm_clean), ENTRY(vmm_released_while_mapped), ENTRY(vmm_mapped_twice), ENTRY(vmm_retained),
    ENTRY(vmm_unmap_many), ENTRY(vmm_released_twice), ENTRY(two_contexts), ENTRY(primary_release), ENTRY(request_fails), {NULL, NULL},
};

int main(int argc, char **argv) {
    CUcontext primary;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&primary, device));
    OK(cuCtxPushCurrent(primary));
    return run_case(cases, argc, argv);
}
