/* Ways of freeing memory, and of failing to. Failures are injected through CULEAK_FAKE_FAIL. */
#include "victim.h"
#include <pthread.h>

/* cudaFree of stream-ordered memory calls cuMemFree_v2; both directions are legal. */
static void async_freed_as_device(void) {
    start_cuda();
    CUdeviceptr address;
    OK(cuMemAllocAsync(&address, 100, NULL));
    OK(cuMemFree_v2(address));
}

static void device_freed_as_async(void) {
    start_cuda();
    OK(cuMemFreeAsync(leak(100), NULL));
}

static void managed_freed_as_device(void) {
    start_cuda();
    CUdeviceptr address;
    OK(cuMemAllocManaged(&address, 100, 1));
    OK(cuMemFree_v2(address));
}

static void v1_freed_as_v2(void) {
    start_cuda();
    unsigned address;
    OK(cuMemAlloc(&address, 100));
    OK(cuMemFree_v2(address));
}

static void from_pool_freed_as_device(void) {
    start_cuda();
    CUpool pool;
    CUpoolProps properties = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    CUdeviceptr address;
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&address, 100, pool, NULL));
    OK(cuMemFree_v2(address));
    OK(cuMemPoolDestroy(pool));
}

static CUdeviceptr handed_over;
static CUcontext context;

static void *free_it(void *nothing) {
    (void)nothing;
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree_v2(handed_over));
    return NULL;
}

static void elsewhere(void) {
    context = start_cuda();
    handed_over = leak(100);
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, free_it, NULL));
    REQUIRE(!pthread_join(thread, NULL));
}

/* Injected: the first cuMemFree_v2 fails with 700, the second succeeds if there is one. */
static void fails_once(void) {
    start_cuda();
    CUdeviceptr address = leak(700);
    EXPECT(700, cuMemFree_v2(address));
}

static void fails_then_frees(void) {
    start_cuda();
    CUdeviceptr address = leak(700);
    EXPECT(700, cuMemFree_v2(address));
    OK(cuMemFree_v2(address));
}

/* Injected: every free answers 4, as while the driver is being unloaded. */
static void at_teardown(void) {
    start_cuda();
    EXPECT(CUDA_ERROR_DEINITIALIZED, cuMemFree_v2(leak(400)));
    CUdeviceptr address;
    OK(cuMemAllocAsync(&address, 401, NULL));
    EXPECT(CUDA_ERROR_DEINITIALIZED, cuMemFreeAsync(address, NULL));
    void *host;
    OK(cuMemHostAlloc(&host, 402, 0));
    EXPECT(CUDA_ERROR_DEINITIALIZED, cuMemFreeHost(host));
}

/* An invalid address, and one that is freed twice: the driver rejects both. */
static void unknown(void) {
    start_cuda();
    CUdeviceptr kept = leak(10), twice = leak(20);
    OK(cuMemFree_v2(twice));
    CUresult first = cuMemFree_v2(twice), second = cuMemFree_v2(0x7f0000000000ull);
    printf("%d %d\n", first != 0, second != 0);
    (void)kept;
}

/* Injected: the first allocation of each function fails with 2 (out of memory). */
static void no_memory(void) {
    start_cuda();
    CUdeviceptr address = 0xdead;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, 64ull << 40));
    OK(cuMemAlloc_v2(&address, 8));
    OK(cuMemFree_v2(address));
}

static void no_memory_of_any_kind(void) {
    start_cuda();
    CUdeviceptr address;
    size_t pitch;
    void *host;
    CUarray array;
    CUarrayDesc shape = {64, 32, CU_FORMAT_FLOAT, 4};
    CUhandle handle;
    CUphysicalProps properties = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    EXPECT(2, cuMemAllocPitch_v2(&address, &pitch, 100, 30, 4));
    EXPECT(2, cuMemAllocManaged(&address, 200, 1));
    EXPECT(2, cuMemHostAlloc(&host, 300, 0));
    EXPECT(2, cuArrayCreate_v2(&array, &shape));
    EXPECT(2, cuMemAllocAsync(&address, 400, NULL));
    EXPECT(2, cuMemCreate(&handle, 2 << 20, &properties, 0));
}

/* The same call site fails 50 times. */
static void no_memory_again_and_again(void) {
    start_cuda();
    CUdeviceptr address;
    for (int i = 0; i < 50; i++) EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, 1ull << 50));
}

/* A failed call writes nothing: invalid out-parameters must not be read. */
static void nowhere_to_write(void) {
    start_cuda();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2((CUdeviceptr *)16, 64));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2((CUdeviceptr *)16, (size_t *)16, 64, 1, 4));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync((CUdeviceptr *)16, 64, NULL));
}

/* errno must not change. */
static void keeps_errno(void) {
    start_cuda();
    errno = 77;
    CUdeviceptr address = leak(10);
    REQUIRE(errno == 77);
    OK(cuMemFree_v2(address));
    REQUIRE(errno == 77);
}

/* 20,000 allocations in order; every second one is freed. */
static void many(void) {
    start_cuda();
    static CUdeviceptr all[20000];
    for (int i = 0; i < 20000; i++) OK(cuMemAlloc_v2(&all[i], 16 + i));
    for (int i = 0; i < 20000; i += 2) OK(cuMemFree_v2(all[i]));
}

/* At most 100 + 200 bytes are live at once. */
static void peak(void) {
    start_cuda();
    leak(100);
    CUdeviceptr second = leak(200);
    OK(cuMemFree_v2(second));
    OK(cuMemFree_v2(leak(150)));
    leak(50);
}

/* One address, allocated and freed 200,000 times, and live at the end. */
static void churn(void) {
    start_cuda();
    for (int i = 0; i < 200000; i++) OK(cuMemFree_v2(leak(256)));
    leak(257);
}

/* On the tiny driver: while one thread is inside cuMemFree, another is given the same address. */
static CUdeviceptr given;

static void *allocates(void *nothing) {
    given = leak(200);
    return nothing;
}

static void allocate_elsewhere(void) {
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, allocates, NULL));
    REQUIRE(!pthread_join(thread, NULL));
}

static void address_given_away(void) {
    start_cuda();
    void (**freed)(void) = dlsym(RTLD_DEFAULT, "tiny_freed");
    REQUIRE(freed);
    CUdeviceptr address = leak(100);
    *freed = allocate_elsewhere;
    OK(cuMemFree_v2(address));
    REQUIRE(given == address);
}

MAIN(BEHAVIOUR(async_freed_as_device), BEHAVIOUR(device_freed_as_async), BEHAVIOUR(managed_freed_as_device),
     BEHAVIOUR(v1_freed_as_v2), BEHAVIOUR(from_pool_freed_as_device), BEHAVIOUR(elsewhere), BEHAVIOUR(fails_once),
     BEHAVIOUR(fails_then_frees), BEHAVIOUR(at_teardown), BEHAVIOUR(unknown), BEHAVIOUR(no_memory),
     BEHAVIOUR(no_memory_of_any_kind), BEHAVIOUR(no_memory_again_and_again), BEHAVIOUR(nowhere_to_write),
     BEHAVIOUR(keeps_errno), BEHAVIOUR(many), BEHAVIOUR(peak), BEHAVIOUR(churn),
     BEHAVIOUR(address_given_away))
