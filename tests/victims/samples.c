/* Many blocks from a few call sites, for sampled stacks. Each size stays below 1 MiB, so that with 512 KiB none is chosen for
 * certain. Keeps every third block of each site until the end; `churn` frees them all. The sums are printed for each site:
 *   site NAME: BYTES bytes in COUNT blocks live, of BYTES bytes in COUNT blocks allocated
 *   samples keep | churn | threads */
#include "victim.h"
#include <pthread.h>
#include <stdint.h>

enum { ROUNDS = 20000, THREADS = 4 };
struct sum { uint64_t live, live_count, all, all_count; };

#define SITE(name, allocate)                                                             \
    static struct sum name##_sum;                                                        \
    static NOINLINE CUdeviceptr name(size_t bytes) {                                     \
        CUdeviceptr address = 0;                                                         \
        OK(allocate);                                                                    \
        STAY();                                                                          \
        __atomic_fetch_add(&name##_sum.all, bytes, __ATOMIC_RELAXED);                    \
        __atomic_fetch_add(&name##_sum.all_count, 1, __ATOMIC_RELAXED);                  \
        return address;                                                                  \
    }
SITE(small_blocks, cuMemAlloc_v2(&address, bytes))
SITE(mixed_blocks, cuMemAlloc_v2(&address, bytes))
SITE(large_blocks, cuMemAllocAsync(&address, bytes, 0))

static uint64_t step(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static int keeps = 1;

static void use(CUdeviceptr address, size_t bytes, struct sum *sum, int i, int is_async) {
    if (i % 3 == 0 && keeps) {
        __atomic_fetch_add(&sum->live, bytes, __ATOMIC_RELAXED);
        __atomic_fetch_add(&sum->live_count, 1, __ATOMIC_RELAXED);
    } else if (is_async) {
        OK(cuMemFreeAsync(address, 0));
    } else {
        OK(cuMemFree_v2(address));
    }
}

static void work(uint64_t state, int rounds) {
    for (int i = 0; i < rounds; i++) {
        size_t mixed = 512 * (1 + step(&state) % 200), large = (256 << 10) + 512 * (step(&state) % 1000);
        use(small_blocks(4096), 4096, &small_blocks_sum, i, 0);
        use(mixed_blocks(mixed), mixed, &mixed_blocks_sum, i, 0);
        use(large_blocks(large), large, &large_blocks_sum, i, 1);
    }
}

static void print(const char *name, const struct sum *sum) {
    printf("site %s: %llu bytes in %llu blocks live, of %llu bytes in %llu blocks allocated\n", name,
           (unsigned long long)sum->live, (unsigned long long)sum->live_count, (unsigned long long)sum->all,
           (unsigned long long)sum->all_count);
}

static void print_all(void) {
    print("small_blocks", &small_blocks_sum);
    print("mixed_blocks", &mixed_blocks_sum);
    print("large_blocks", &large_blocks_sum);
}

static void keep(void) {
    start_cuda();
    work(1, ROUNDS);
    print_all();
}

static void churn(void) {
    keeps = 0;
    keep();
}

static CUcontext context;

static void *thread(void *number) {
    OK(cuCtxSetCurrent(context));
    work((uintptr_t)number, ROUNDS / THREADS);
    return NULL;
}

static void threads(void) {
    pthread_t all[THREADS];
    context = start_cuda();
    for (uintptr_t i = 0; i < THREADS; i++) REQUIRE(pthread_create(&all[i], NULL, thread, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++) REQUIRE(pthread_join(all[i], NULL) == 0);
    print_all();
}

MAIN(BEHAVIOUR(keep), BEHAVIOUR(churn), BEHAVIOUR(threads))
