/* What a context frees when it ends, and what it does not. */
#include "victim.h"
#include <dlfcn.h>
#include <pthread.h>

static CUcontext create(int ordinal) {
    CUcontext context;
    CUdevice device;
    OK(cuDeviceGet(&device, ordinal));
    OK(cuCtxCreate_v2(&context, 0, device));
    return context;
}

/* One block of every kind in the current context; pool and VMM memory are the two that outlive it. */
static void fill(void) {
    CUdeviceptr address;
    size_t pitch;
    void *host;
    CUarray array;
    CUarrayDesc shape = {64, 32, CU_FORMAT_FLOAT, 4};
    CUhandle handle;
    CUphysicalProps properties = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    leak(1000);
    OK(cuMemAllocPitch_v2(&address, &pitch, 100, 30, 4));
    OK(cuMemAllocManaged(&address, 2000, 1));
    OK(cuMemHostAlloc(&host, 3000, 0));
    OK(cuArrayCreate_v2(&array, &shape));
    OK(cuMemAllocAsync(&address, 4000, NULL));
    OK(cuMemCreate(&handle, 2 << 20, &properties, 0));
}

static void destroyed(void) {
    REQUIRE(open_driver());
    OK(cuInit(0));
    CUcontext context = create(0);
    fill();
    OK(cuCtxDestroy_v2(context));
}

static void destroyed_v1(void) {
    REQUIRE(open_driver());
    OK(cuInit(0));
    CUcontext context = create(0);
    leak(1000);
    OK(cuCtxDestroy(context));
}

/* Injected: cuCtxDestroy_v2 fails with 700. */
static void destroy_fails(void) {
    REQUIRE(open_driver());
    OK(cuInit(0));
    CUcontext context = create(0);
    leak(1000);
    EXPECT(700, cuCtxDestroy_v2(context));
}

/* A context attached twice is destroyed by its second detach. */
static void detached(void) {
    REQUIRE(open_driver());
    OK(cuInit(0));
    CUcontext context = create(0), same;
    OK(cuCtxAttach(&same, 0));
    leak(1000);
    OK(cuCtxDetach(context));
    if (arguments[0] && !strcmp(arguments[0], "twice")) OK(cuCtxDetach(context));
}

static void primary_released(void) {
    start_cuda();
    fill();
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void primary_released_v1(void) {
    start_cuda();
    leak(1000);
    OK(cuDevicePrimaryCtxRelease(0));
}

/* Retained twice, released once: still alive. */
static void primary_still_retained(void) {
    start_cuda();
    CUcontext again;
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    leak(1000);
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void reset(void) {
    start_cuda();
    fill();
    OK(cuDevicePrimaryCtxReset_v2(0));
}

/* cudaDeviceReset reaches the unsuffixed name. */
static void reset_v1(void) {
    start_cuda();
    fill();
    OK(cuDevicePrimaryCtxReset(0));
}

/* Pool memory outlives a reset: it stays valid and can be freed. */
static void pool_memory_outlives_reset(void) {
    start_cuda();
    CUdeviceptr address;
    OK(cuMemAllocAsync(&address, 4000, NULL));
    OK(cuDevicePrimaryCtxReset(0));
    if (arguments[0] && !strcmp(arguments[0], "free")) {
        start_cuda();
        OK(cuMemFree_v2(address));
    }
}

/* Two contexts of one device, and one of a second device: destroying one frees its memory alone. */
static void two(void) {
    REQUIRE(open_driver());
    OK(cuInit(0));
    CUcontext first = create(0);
    leak(100);
    CUcontext second = create(0);
    leak(200);
    create(1);
    leak(400);
    printf("%p %p\n", first, second);
    OK(cuCtxDestroy_v2(first));
}

/* On the tiny driver: while one thread is inside cuCtxDestroy, another creates a context, at the same address. */
static CUcontext recreated;

static void *creates_and_allocates(void *nothing) {
    recreated = create(0);
    leak(200);
    return nothing;
}

static void recreate(void) {
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, creates_and_allocates, NULL));
    REQUIRE(!pthread_join(thread, NULL));
}

static void handle_used_again(void) {
    REQUIRE(open_driver());
    OK(cuInit(0));
    void (**destroyed)(void) = dlsym(RTLD_DEFAULT, "tiny_destroyed");
    REQUIRE(destroyed);
    CUcontext first = create(0);
    leak(100);
    *destroyed = recreate;
    OK(cuCtxDestroy_v2(first));
    REQUIRE(recreated == first);
    if (arguments[0]) OK(cuCtxDestroy_v2(recreated));
}

/* Memory that is freed while another context is current. */
static void freed_under_another(void) {
    REQUIRE(open_driver());
    OK(cuInit(0));
    create(0);
    CUdeviceptr address = leak(100);
    create(0);
    OK(cuMemFree_v2(address));
    leak(200);
}

/* The UUIDs that the driver reports for the devices. */
static void uuids(void) {
    start_cuda();
    int count;
    OK(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++) {
        CUuuid uuid;
        CUdevice device;
        OK(cuDeviceGet(&device, i));
        OK(cuDeviceGetUuid(&uuid, device));
        for (int b = 0; b < 16; b++) printf("%02x", (unsigned char)uuid.bytes[b]);
        printf("\n");
    }
    leak(100);
    create(1);
    leak(200);
}

/* NVIDIA's libraries ask for private tables; calls through those cannot be intercepted. */
static void private_table(void) {
    const void *table;
    CUuuid runtime_interface = {"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9"}, unknown = {"?"};
    start_cuda();
    leak(10);
    printf("known %d\n", cuGetExportTable(&table, &runtime_interface));
    printf("unknown %d\n", cuGetExportTable(&table, &unknown));
}

MAIN(BEHAVIOUR(destroyed), BEHAVIOUR(destroyed_v1), BEHAVIOUR(destroy_fails), BEHAVIOUR(detached),
     BEHAVIOUR(primary_released), BEHAVIOUR(primary_released_v1), BEHAVIOUR(primary_still_retained), BEHAVIOUR(reset),
     BEHAVIOUR(reset_v1), BEHAVIOUR(pool_memory_outlives_reset), BEHAVIOUR(two), BEHAVIOUR(handle_used_again),
     BEHAVIOUR(freed_under_another), BEHAVIOUR(uuids), BEHAVIOUR(private_table))
