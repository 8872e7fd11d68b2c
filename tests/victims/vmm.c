/* Virtual memory management: physical memory is live while its handle or a mapping of it exists. */
#include "victim.h"

enum { CHUNK = 2 << 20 };

static CUhandle create(void) {
    CUhandle handle;
    CUphysicalProps properties = {.type = CU_TYPE_PINNED, .handle_types = CU_HANDLE_FD, .location = {CU_LOCATION_DEVICE, 0}};
    OK(cuMemCreate(&handle, CHUNK, &properties, 0));
    return handle;
}

static CUdeviceptr reserve(int chunks) {
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, (size_t)chunks * CHUNK, 0, 0, 0));
    return address;
}

static void whole_life(void) {
    start_cuda();
    CUhandle handle = create();
    CUdeviceptr address = reserve(1);
    OK(cuMemMap(address, CHUNK, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemUnmap(address, CHUNK));
    OK(cuMemAddressFree(address, CHUNK));
}

static void released_while_mapped(void) {
    start_cuda();
    CUhandle handle = create();
    CUdeviceptr address = reserve(1);
    OK(cuMemMap(address, CHUNK, 0, handle, 0));
    OK(cuMemRelease(handle));
}

static void unmapped_but_held(void) {
    start_cuda();
    CUhandle handle = create();
    CUdeviceptr address = reserve(1);
    OK(cuMemMap(address, CHUNK, 0, handle, 0));
    OK(cuMemUnmap(address, CHUNK));
    OK(cuMemAddressFree(address, CHUNK));
}

static void retained(void) {
    start_cuda();
    CUhandle handle = create(), again;
    CUdeviceptr address = reserve(1);
    OK(cuMemMap(address, CHUNK, 0, handle, 0));
    OK(cuMemRetainAllocationHandle(&again, (void *)address));
    OK(cuMemRelease(handle));
    OK(cuMemUnmap(address, CHUNK));
    OK(cuMemAddressFree(address, CHUNK)); /* one reference is left */
}

static void retained_and_released(void) {
    start_cuda();
    CUhandle handle = create(), again;
    CUdeviceptr address = reserve(1);
    OK(cuMemMap(address, CHUNK, 0, handle, 0));
    OK(cuMemRetainAllocationHandle(&again, (void *)address));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(again));
    OK(cuMemUnmap(address, CHUNK));
    OK(cuMemAddressFree(address, CHUNK));
}

static void mapped_twice(void) {
    start_cuda();
    CUhandle handle = create();
    CUdeviceptr address = reserve(2);
    OK(cuMemMap(address, CHUNK, 0, handle, 0));
    OK(cuMemMap(address + CHUNK, CHUNK, 0, handle, 0));
    OK(cuMemRelease(handle));
}

static void mapped_twice_unmapped_once(void) {
    start_cuda();
    CUhandle handle = create();
    CUdeviceptr first = reserve(1), second = reserve(1);
    OK(cuMemMap(first, CHUNK, 0, handle, 0));
    OK(cuMemMap(second, CHUNK, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemUnmap(first, CHUNK));
    OK(cuMemAddressFree(first, CHUNK));
}

static void unmapped_together(void) {
    start_cuda();
    CUhandle one = create(), two = create();
    CUdeviceptr address = reserve(2);
    OK(cuMemMap(address, CHUNK, 0, one, 0));
    OK(cuMemMap(address + CHUNK, CHUNK, 0, two, 0));
    OK(cuMemRelease(one));
    OK(cuMemRelease(two));
    OK(cuMemUnmap(address, 2 * CHUNK));
    OK(cuMemAddressFree(address, 2 * CHUNK));
}

/* The second handle may have the number of the first. */
static void handle_reused(void) {
    start_cuda();
    CUdeviceptr address = reserve(1);
    for (int i = 0; i < 100; i++) {
        CUhandle handle = create();
        OK(cuMemMap(address, CHUNK, 0, handle, 0));
        OK(cuMemRelease(handle));
        OK(cuMemUnmap(address, CHUNK));
    }
    CUhandle last = create();
    OK(cuMemMap(address, CHUNK, 0, last, 0));
    OK(cuMemRelease(last));
}

/* Injected: the first cuMemRelease and the first cuMemUnmap fail with 700. */
static void release_fails(void) {
    start_cuda();
    CUhandle handle = create();
    CUdeviceptr address = reserve(1);
    OK(cuMemMap(address, CHUNK, 0, handle, 0));
    EXPECT(700, cuMemRelease(handle));
    EXPECT(700, cuMemUnmap(address, CHUNK));
}

/* The driver refuses the second release, whether a mapping keeps the memory or not. */
static void released_twice(void) {
    start_cuda();
    int is_mapped = arguments[0] && !strcmp(arguments[0], "mapped");
    CUhandle handle = create();
    if (is_mapped) OK(cuMemMap(reserve(1), CHUNK, 0, handle, 0));
    OK(cuMemRelease(handle));
    EXPECT(1, cuMemRelease(handle));
}

/* Injected: the first cuMemMap fails with 700. */
static void map_fails(void) {
    start_cuda();
    CUhandle handle = create();
    CUdeviceptr address = reserve(1);
    EXPECT(700, cuMemMap(address, CHUNK, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(address, CHUNK));
}

/* As a thread that has not used the runtime yet. */
static void mapped_without_context(void) {
    start_cuda();
    CUhandle handle = create();
    CUdeviceptr address = reserve(1);
    OK(cuCtxSetCurrent(NULL));
    OK(cuMemMap(address, CHUNK, 0, handle, 0));
}

/* A handle imported from its own export: the memory exists once. */
static void imported(void) {
    start_cuda();
    CUhandle handle = create(), imported_handle;
    int fd = -1;
    OK(cuMemExportToShareableHandle(&fd, handle, CU_HANDLE_FD, 0));
    OK(cuMemImportFromShareableHandle(&imported_handle, (void *)(intptr_t)fd, CU_HANDLE_FD));
    if (arguments[0] && !strcmp(arguments[0], "free")) {
        OK(cuMemRelease(imported_handle));
        OK(cuMemRelease(handle));
    }
}

MAIN(BEHAVIOUR(whole_life), BEHAVIOUR(released_while_mapped), BEHAVIOUR(unmapped_but_held), BEHAVIOUR(retained),
     BEHAVIOUR(retained_and_released), BEHAVIOUR(mapped_twice), BEHAVIOUR(mapped_twice_unmapped_once),
     BEHAVIOUR(unmapped_together), BEHAVIOUR(handle_reused), BEHAVIOUR(release_fails), BEHAVIOUR(released_twice), BEHAVIOUR(map_fails),
     BEHAVIOUR(imported), BEHAVIOUR(mapped_without_context))
