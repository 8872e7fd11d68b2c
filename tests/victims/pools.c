/* Stream-ordered memory: from which pool, on which stream. */
#include "victim.h"

static CUpool new_pool(void) {
    CUpool pool;
    CUpoolProps properties = {.type = CU_TYPE_PINNED, .handle_types = CU_HANDLE_FD, .location = {CU_LOCATION_DEVICE, 0}};
    OK(cuMemPoolCreate(&pool, &properties));
    return pool;
}

/* Prints the handles, so that the recording can be compared with them. */
static void streams(void) {
    start_cuda();
    CUstream stream;
    CUdeviceptr address;
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAllocAsync(&address, 100, NULL));
    OK(cuMemAllocAsync(&address, 101, CU_STREAM_LEGACY));
    OK(cuMemAllocAsync(&address, 102, CU_STREAM_PER_THREAD));
    OK(cuMemAllocAsync(&address, 103, stream));
    OK(cuMemAllocAsync_ptsz(&address, 104, NULL));
    OK(cuMemAllocAsync_ptsz(&address, 105, CU_STREAM_LEGACY));
    printf("stream %llu\n", (unsigned long long)(uintptr_t)stream);
}

static void named_pool(void) {
    start_cuda();
    CUpool pool = new_pool();
    CUdeviceptr address;
    OK(cuMemAllocFromPoolAsync(&address, 100, pool, NULL));
    printf("pool %llu\n", (unsigned long long)(uintptr_t)pool);
}

/* cuDeviceSetMemPool: later cuMemAllocAsync calls come from that pool. */
static void current_pool(void) {
    start_cuda();
    CUpool pool = new_pool();
    CUdeviceptr address;
    OK(cuMemAllocAsync(&address, 100, NULL));
    OK(cuDeviceSetMemPool(0, pool));
    OK(cuMemAllocAsync(&address, 200, NULL));
    printf("pool %llu\n", (unsigned long long)(uintptr_t)pool);
}

/* cuMemSetMemPool with device memory does the same; the pools of other locations and types are not those of cuMemAllocAsync. */
static void current_pool_of_location(void) {
    start_cuda();
    CUpool pool = new_pool(), other = new_pool();
    CUdeviceptr address;
    CUlocation device = {CU_LOCATION_DEVICE, 0}, host = {CU_LOCATION_HOST, 0}, part = {CU_LOCATION_PART_OF_DEVICE, 0};
    OK(cuMemSetMemPool(&device, CU_TYPE_MANAGED, other));
    OK(cuMemSetMemPool(&host, CU_TYPE_PINNED, other));
    OK(cuMemSetMemPool(&part, CU_TYPE_PINNED, other));
    OK(cuMemAllocAsync(&address, 100, NULL));
    OK(cuMemSetMemPool(&device, CU_TYPE_PINNED, pool));
    OK(cuMemAllocAsync(&address, 200, NULL));
    printf("pool %llu\n", (unsigned long long)(uintptr_t)pool);
}

/* A pool is destroyed when its last allocation is freed, so that allocation is still a leak. */
static void destroyed_with_memory(void) {
    start_cuda();
    CUpool pool = new_pool();
    CUdeviceptr address;
    OK(cuMemAllocFromPoolAsync(&address, 100, pool, NULL));
    OK(cuMemPoolDestroy(pool));
    if (arguments[0] && !strcmp(arguments[0], "free")) OK(cuMemFreeAsync(address, NULL));
}

/* Pages that the pool retains are not live memory. */
static void trimmed(void) {
    start_cuda();
    CUpool pool = new_pool();
    CUdeviceptr address;
    OK(cuMemAllocFromPoolAsync(&address, 100, pool, NULL));
    OK(cuMemFreeAsync(address, NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemPoolDestroy(pool));
}

/* A pool and a pointer from it, imported into the process that exported them. */
static void imported(void) {
    start_cuda();
    CUpool pool = new_pool(), imported_pool;
    CUdeviceptr address, same;
    CUpoolPointer pointer;
    int fd = -1;
    OK(cuMemAllocFromPoolAsync(&address, 100, pool, NULL));
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_HANDLE_FD, 0));
    OK(cuMemPoolImportFromShareableHandle(&imported_pool, (void *)(intptr_t)fd, CU_HANDLE_FD, 0));
    OK(cuMemPoolExportPointer(&pointer, address));
    OK(cuMemPoolImportPointer(&same, imported_pool, &pointer));
    if (arguments[0] && !strcmp(arguments[0], "free")) {
        OK(cuMemFreeAsync(same, NULL));
        OK(cuMemFreeAsync(address, NULL));
        OK(cuMemPoolDestroy(imported_pool));
        OK(cuMemPoolDestroy(pool));
    }
}

/* Memory of a pool in host memory, which a reset of the device does not free. */
static void pool_on_host(void) {
    start_cuda();
    CUpool pool;
    CUpoolProps properties = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_HOST, 0}};
    OK(cuMemPoolCreate(&pool, &properties));
    CUdeviceptr address, freed;
    OK(cuMemAllocFromPoolAsync(&address, 100, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&freed, 200, pool, NULL));
    OK(cuMemFreeAsync(freed, NULL));
    OK(cuDevicePrimaryCtxReset(0));
}

/* The default pool of a device that is not the current one. */
static void pool_elsewhere(void) {
    start_cuda();
    CUpool pool;
    OK(cuDeviceGetDefaultMemPool(&pool, 1));
    CUdeviceptr address;
    OK(cuMemAllocFromPoolAsync(&address, 100, pool, NULL));
}

MAIN(BEHAVIOUR(streams), BEHAVIOUR(named_pool), BEHAVIOUR(current_pool), BEHAVIOUR(current_pool_of_location), BEHAVIOUR(destroyed_with_memory),
     BEHAVIOUR(trimmed), BEHAVIOUR(imported), BEHAVIOUR(pool_on_host), BEHAVIOUR(pool_elsewhere))
