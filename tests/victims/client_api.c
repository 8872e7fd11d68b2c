/* A program with its own allocator, which registers its blocks and sets marks (shim/include/culeak.h). */
#include "victim.h"
#include "../../shim/include/culeak.h"
#include <pthread.h>
#include <sys/wait.h>

static NOINLINE void hand_out(const char *domain, CUdeviceptr address, size_t bytes) {
    culeak_alloc(domain, (void *)address, bytes, (void *)0x77);
    STAY();
}

/* Blocks of two allocators, one within the other at the same address; one block is freed. */
static void blocks(void) {
    start_cuda();
    CUdeviceptr slab = leak(1 << 20);
    hand_out("cache", slab, 4096);
    hand_out("cache", slab + 8192, 512);
    hand_out("arena", slab, 100);
    culeak_free("cache", (void *)(slab + 8192));
    culeak_free("cache", (void *)(slab + 1)); /* never registered */
    printf("slab %llx\n", slab);
}

/* Three pages of one call, of which two are freed together; and calls that are garbage. */
static void pages(void) {
    start_cuda();
    CUdeviceptr slab = leak(1 << 20);
    unsigned long long all[] = {slab, slab + 4096, slab + 8192}, none = ~0ull;
    culeak_alloc_pages("pages", all, 3, 4096, (void *)0x77);
    culeak_free_pages("pages", all + 1, 2);
    culeak_alloc_pages("pages", NULL, 3, 4096, NULL);
    culeak_alloc_pages("pages", all, 0, 4096, NULL);
    culeak_alloc_pages("pages", all, ~(size_t)0, 4096, NULL);
    culeak_alloc_pages("pages", &none, 1, 4096, NULL);
    culeak_free_pages("pages", NULL, 1);
    culeak_free_pages(NULL, all, 0);
    culeak_alloc("pages", (void *)(uintptr_t)(1ull << 57), 4096, NULL);
}

/* Two pools with owners, of which one has ended and holds pages, and ids that are none, also in a child. */
static void owners(void) {
    start_cuda();
    leak(1 << 20);
    unsigned long long pool = culeak_pool_begin("engine", 4096), other = culeak_pool_begin("engine", 64);
    unsigned long long kept = culeak_owner_begin(pool, "kept"), ended = culeak_owner_begin(pool, "ended");
    unsigned long long gone = culeak_owner_begin(pool, "gone");
    struct culeak_pages all = {10, 20, 5, 65}, some = {3, 0, 0, 0}, waits = {0, 0, 5, 0}, none = {0, 0, 0, 0};
    culeak_set_pages(pool, &all);
    culeak_set_pages(kept, &some);
    culeak_set_pages(ended, &waits);
    culeak_owner_end(ended);
    culeak_set_pages(gone, &some);
    culeak_owner_end(gone);
    culeak_set_pages(gone, &none);
    culeak_set_pages(gone, &all);
    culeak_owner_end(other);
    culeak_set_pages(other, &all);
    culeak_set_pages(0, &all);
    culeak_set_pages(~0ull, &all);
    culeak_set_pages(pool, NULL);
    culeak_owner_end(0);
    REQUIRE(!culeak_owner_begin(0, "of no pool") && !culeak_owner_begin(other, "of none either"));
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        culeak_set_pages(kept, &all);
        culeak_owner_end(pool);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
}

static CUdeviceptr next_block;

static NOINLINE void *own_alloc(size_t bytes, int device, void *stream) {
    (void)device, (void)stream;
    if (bytes > 1 << 20) return NULL;
    next_block += bytes;
    return (void *)(uintptr_t)(next_block - bytes);
}

static int freed_blocks;

static void own_free(void *address, size_t bytes, int device, void *stream) {
    (void)address, (void)bytes, (void)device, (void)stream;
    freed_blocks++;
}

typedef void *(*Alloc)(size_t, int, void *);
typedef void (*Free)(void *, size_t, int, void *);

static NOINLINE void *ask(Alloc alloc, size_t bytes) {
    void *block = alloc(bytes, 1, (void *)0x99);
    STAY();
    return block;
}

/* An allocator of two functions, behind the recorder's: twice as many times as there is room. */
static void forwards(void) {
    start_cuda();
    next_block = leak(1 << 20);
    for (int i = 0; i < 16; i++) {
        void *functions[2];
        *(Alloc *)&functions[0] = own_alloc;
        *(Free *)&functions[1] = own_free;
        char name[8];
        snprintf(name, sizeof name, "own%d", i);
        int forwarded = culeak_forward(name, functions);
        if (i == 0) REQUIRE(!culeak_forward("x", NULL));
        Alloc alloc = *(Alloc *)&functions[0];
        Free release = *(Free *)&functions[1];
        REQUIRE(forwarded ? alloc != own_alloc && release != own_free : alloc == own_alloc && release == own_free);
        ask(alloc, 512);
        release(ask(alloc, 100), 100, 1, NULL);
        REQUIRE(!ask(alloc, 2 << 20));
        release(NULL, 0, 0, NULL);
    }
    printf("freed %d\n", freed_blocks);
}

static void marks(void) {
    start_cuda();
    leak(1000);
    culeak_mark("epoch 1");
    leak(2000);
    culeak_snapshot("after warm-up");
    leak(4000);
    culeak_mark("epoch 2 \xc3\xa9");
}

/* Called before CUDA, and with null arguments. */
static void odd(void) {
    culeak_mark("before CUDA");
    culeak_mark(NULL);
    culeak_free(NULL, NULL);
    culeak_alloc("x", (void *)~0ul, 5, NULL); /* no address */
    start_cuda();
    leak(10);
}

static void *register_blocks(void *argument) {
    uintptr_t base = (uintptr_t)argument;
    char domain[8];
    for (int round = 0; round < 5000; round++) {
        snprintf(domain, sizeof domain, "d%d", round % 5);
        culeak_alloc(domain, (void *)(base + 512), 512, NULL);
        culeak_free(domain, (void *)(base + 512));
    }
    culeak_alloc("d0", (void *)base, 512, NULL);
    return NULL;
}

static void threads(void) {
    start_cuda();
    pthread_t all[8];
    for (uintptr_t i = 0; i < 8; i++) REQUIRE(!pthread_create(&all[i], NULL, register_blocks, (void *)((i + 1) << 20)));
    for (int i = 0; i < 8; i++) REQUIRE(!pthread_join(all[i], NULL));
}

static void forks(void) {
    start_cuda();
    culeak_alloc("cache", (void *)0x1000, 512, NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        culeak_free("cache", (void *)0x1000);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
}

/* Peaks of 1 MiB, 3 MiB, then less, then 4 MiB and a bit more. */
static void peaks(void) {
    start_cuda();
    leak(1 << 20);
    CUdeviceptr big = leak(2 << 20);
    OK(cuMemFree_v2(big));
    leak(1 << 20);
    leak(2 << 20);
    leak(1000);
}

/* Memory runs out on two stacks, more than once on each. */
static NOINLINE void ask_for_too_much(size_t bytes) {
    CUdeviceptr address;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, bytes));
    STAY();
}

static void runs_out(void) {
    start_cuda();
    leak(4321);
    for (int i = 0; i < 3; i++) ask_for_too_much(1ull << 50);
    ask_for_too_much(1ull << 51);
    for (int i = 0; i < 8; i++) {
        CUdeviceptr address;
        switch (i) { /* one call site for each */
#define CASE(n) case n: EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, 1ull << 50)); break;
            CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
        }
    }
    leak(1234);
}

/* Allocates until an automatic snapshot exists that shows more than one allocation. */
static void goes_on(void) {
    start_cuda();
    for (int i = 0; i < 100; i++) {
        leak(1000);
        usleep(2000);
    }
}

static void say(const char *what, unsigned number) {
    struct culeak_interval of;
    for (int device = -2; device < 2; device++)
        if (culeak_interval_read(number, device, &of))
            printf("%s: device %d left %llu in %llu, needed %llu, holds %llu\n", what, device, of.left_bytes,
                   of.left_count, of.peak_bytes, of.held_bytes);
}

/* Three tests of a harness: one leaks, one frees what an earlier one left, one exceeds its limit for a while. */
static void intervals(void) {
    unsigned first = culeak_interval_begin("before CUDA", 0);
    start_cuda();
    CUdeviceptr kept = leak(1000), gone = leak(5000);
    hand_out("cache", kept, 100);
    OK(cuMemFree_v2(gone));
    void *host;
    OK(cuMemHostAlloc(&host, 4096, 0));
    say("first", first);
    unsigned second = culeak_interval_begin("second", 0);
    OK(cuMemFree_v2(kept));
    leak(70);
    say("second", second);
    say("gone", first);
    unsigned third = culeak_interval_begin("third", 3000);
    CUdeviceptr a = leak(2000), b = leak(1500), c = leak(1);
    OK(cuMemFree_v2(a));
    OK(cuMemFree_v2(b));
    OK(cuMemFree_v2(c));
    say("third", third);
    say("none", 0);
}

MAIN(BEHAVIOUR(blocks), BEHAVIOUR(pages), BEHAVIOUR(owners), BEHAVIOUR(forwards), BEHAVIOUR(marks), BEHAVIOUR(odd), BEHAVIOUR(threads), BEHAVIOUR(forks), BEHAVIOUR(peaks), BEHAVIOUR(runs_out), BEHAVIOUR(goes_on), BEHAVIOUR(intervals))
