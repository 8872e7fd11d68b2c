/* Every kind of memory, allocated once, and freed if the last argument is "free". */
#include "victim.h"

static int give_back(void) { return arguments[0] && !strcmp(arguments[0], "free"); }

static void device(void) {
    start_cuda();
    CUdeviceptr address;
    OK(cuMemAlloc_v2(&address, 1000));
    if (give_back()) OK(cuMemFree_v2(address));
}

/* The 32-bit ABI of CUDA 2 writes 4 bytes, not 8. */
static void device_v1(void) {
    start_cuda();
    struct { unsigned address, canary; } out = {0, 0xdecafbad};
    OK(cuMemAlloc(&out.address, 1001));
    REQUIRE(out.canary == 0xdecafbad && out.address != 0);
    if (give_back()) OK(cuMemFree(out.address));
}

static void pitched(void) {
    start_cuda();
    CUdeviceptr address;
    size_t pitch = 0;
    OK(cuMemAllocPitch_v2(&address, &pitch, 100, 30, 4));
    printf("pitch %zu\n", pitch);
    if (give_back()) OK(cuMemFree_v2(address));
}

static void pitched_v1(void) {
    start_cuda();
    struct { unsigned address, canary; } out = {0, 0xdecafbad};
    struct { unsigned pitch, canary; } row = {0, 0xdecafbad};
    OK(cuMemAllocPitch(&out.address, &row.pitch, 100, 30, 4));
    REQUIRE(out.canary == 0xdecafbad && row.canary == 0xdecafbad);
    printf("pitch %u\n", row.pitch);
    if (give_back()) OK(cuMemFree(out.address));
}

static void managed(void) {
    start_cuda();
    CUdeviceptr address;
    OK(cuMemAllocManaged(&address, 2000, 1));
    if (give_back()) OK(cuMemFree_v2(address));
}

static void host(void) {
    start_cuda();
    void *address;
    OK(cuMemHostAlloc(&address, 3000, 0));
    if (give_back()) OK(cuMemFreeHost(address));
}

static void host_v2(void) {
    start_cuda();
    void *address;
    OK(cuMemAllocHost_v2(&address, 3002));
    if (give_back()) OK(cuMemFreeHost(address));
}

static void host_v1(void) {
    start_cuda();
    void *address;
    OK(cuMemAllocHost(&address, 3001));
    if (give_back()) OK(cuMemFreeHost(address));
}

static char page[8192] __attribute__((aligned(4096)));

static void registered(void) {
    start_cuda();
    OK(cuMemHostRegister_v2(page, 4096, 0));
    if (give_back()) OK(cuMemHostUnregister(page));
}

static void registered_v1(void) {
    start_cuda();
    OK(cuMemHostRegister(page, 4096, 0));
    if (give_back()) OK(cuMemHostUnregister(page));
}

static void array(void) {
    start_cuda();
    CUarray array;
    CUarrayDesc shape = {64, 32, CU_FORMAT_FLOAT, 4};
    OK(cuArrayCreate_v2(&array, &shape));
    if (give_back()) OK(cuArrayDestroy(array));
}

static void array_v1(void) {
    start_cuda();
    CUarray array;
    CUarrayDescV1 shape = {64, 32, CU_FORMAT_FLOAT, 2};
    OK(cuArrayCreate(&array, &shape));
    if (give_back()) OK(cuArrayDestroy(array));
}

static void array3d(void) {
    start_cuda();
    CUarray array;
    CUarray3dDesc shape = {16, 8, 4, CU_FORMAT_U8, 1, 0};
    OK(cuArray3DCreate_v2(&array, &shape));
    if (give_back()) OK(cuArrayDestroy(array));
}

static void array3d_v1(void) {
    start_cuda();
    CUarray array;
    CUarray3dDescV1 shape = {16, 8, 4, CU_FORMAT_U8, 2, 0};
    OK(cuArray3DCreate(&array, &shape));
    if (give_back()) OK(cuArrayDestroy(array));
}

static void mipmapped(void) {
    start_cuda();
    CUmipmap mipmap;
    CUarray3dDesc shape = {16, 16, 0, CU_FORMAT_FLOAT, 1, 0};
    OK(cuMipmappedArrayCreate(&mipmap, &shape, 3)); /* 16×16 + 8×8 + 4×4 texels of 4 bytes */
    if (give_back()) OK(cuMipmappedArrayDestroy(mipmap));
}

static void async(void) {
    start_cuda();
    CUdeviceptr address;
    OK(cuMemAllocAsync(&address, 4000, NULL));
    if (give_back()) OK(cuMemFreeAsync(address, NULL));
}

static void async_ptsz(void) {
    start_cuda();
    CUdeviceptr address;
    OK(cuMemAllocAsync_ptsz(&address, 4001, NULL));
    if (give_back()) OK(cuMemFreeAsync_ptsz(address, NULL));
}

static CUpool new_pool(void) {
    CUpool pool;
    CUpoolProps properties = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    OK(cuMemPoolCreate(&pool, &properties));
    return pool;
}

static void from_pool(void) {
    start_cuda();
    CUpool pool = new_pool();
    CUdeviceptr address;
    OK(cuMemAllocFromPoolAsync(&address, 5000, pool, NULL));
    if (give_back()) {
        OK(cuMemFreeAsync(address, NULL));
        OK(cuMemPoolDestroy(pool));
    }
}

static void from_pool_ptsz(void) {
    start_cuda();
    CUpool pool = new_pool();
    CUdeviceptr address;
    OK(cuMemAllocFromPoolAsync_ptsz(&address, 5001, pool, NULL));
    if (give_back()) {
        OK(cuMemFreeAsync_ptsz(address, NULL));
        OK(cuMemPoolDestroy(pool));
    }
}

static void pool(void) {
    start_cuda();
    CUpool pool = new_pool();
    if (give_back()) OK(cuMemPoolDestroy(pool));
}

static void reserved(void) {
    start_cuda();
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, 4 << 20, 0, 0, 0));
    if (give_back()) OK(cuMemAddressFree(address, 4 << 20));
}

static void physical_at(int place, int id) {
    start_cuda();
    CUhandle handle;
    CUphysicalProps properties = {.type = CU_TYPE_PINNED, .location = {place, id}};
    OK(cuMemCreate(&handle, 2 << 20, &properties, 0));
    if (give_back()) OK(cuMemRelease(handle));
}

static void physical(void) { physical_at(CU_LOCATION_DEVICE, 0); }
static void host_physical(void) { physical_at(CU_LOCATION_HOST, 0); }
/* A locality domain is a part of a device: the lowest byte is the device, the next one the domain. */
static void localized(void) { physical_at(CU_LOCATION_PART_OF_DEVICE, 1 << 8); }

static void multicast(void) {
    start_cuda();
    CUhandle handle;
    CUmulticastProps properties = {.devices = 2, .bytes = 2 << 20};
    OK(cuMulticastCreate(&handle, &properties));
    if (give_back()) OK(cuMemRelease(handle));
}

static void external(void) {
    start_cuda();
    CUexternal memory;
    CUexternalDesc descriptor = {.type = 1, .bytes = 1 << 20};
    descriptor.fd = dup(0);
    OK(cuImportExternalMemory(&memory, &descriptor));
    if (give_back()) OK(cuDestroyExternalMemory(memory));
}

static void external_mapping(void) {
    start_cuda();
    CUexternal memory;
    CUdeviceptr address;
    CUexternalDesc descriptor = {.type = 1, .bytes = 1 << 20};
    CUexternalBuffer buffer = {.offset = 0, .bytes = 65536};
    descriptor.fd = dup(0);
    OK(cuImportExternalMemory(&memory, &descriptor));
    OK(cuExternalMemoryGetMappedBuffer(&address, memory, &buffer));
    OK(cuDestroyExternalMemory(memory)); /* does not free what was mapped from it */
    if (give_back()) OK(cuMemFree_v2(address));
}

MAIN(BEHAVIOUR(device), BEHAVIOUR(device_v1), BEHAVIOUR(pitched), BEHAVIOUR(pitched_v1), BEHAVIOUR(managed), BEHAVIOUR(host),
     BEHAVIOUR(host_v1), BEHAVIOUR(host_v2), BEHAVIOUR(registered), BEHAVIOUR(registered_v1), BEHAVIOUR(array),
     BEHAVIOUR(array_v1), BEHAVIOUR(array3d), BEHAVIOUR(array3d_v1), BEHAVIOUR(mipmapped), BEHAVIOUR(async),
     BEHAVIOUR(async_ptsz), BEHAVIOUR(from_pool), BEHAVIOUR(from_pool_ptsz), BEHAVIOUR(pool), BEHAVIOUR(reserved),
     BEHAVIOUR(physical), BEHAVIOUR(host_physical), BEHAVIOUR(localized), BEHAVIOUR(multicast), BEHAVIOUR(external), BEHAVIOUR(external_mapping))
