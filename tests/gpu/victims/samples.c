// Many blocks from three call sites, for sampled stacks. Each size stays below 1 MiB, so that with a distance of 512 KiB none is chosen
// for certain. Keeps every third block of each site until the end. Prints FACT NAME_live, NAME_live_count, NAME_all, NAME_all_count for each site.
#include "victim.h"

#include <cuda.h>

enum { ROUNDS = 10000 };
typedef struct {
    uint64_t live, live_count, all, all_count;
} Sum;

// Not inlined, and not ending in the call: each is a frame of its own.
#define SITE(name, allocate, release)                                                              \
    static Sum name##_sum;                                                                         \
    static __attribute__((noinline)) void name(size_t bytes, int keep) {                           \
        CUdeviceptr address;                                                                       \
        OK(allocate);                                                                              \
        name##_sum.all += bytes, name##_sum.all_count++;                                           \
        if (keep) name##_sum.live += bytes, name##_sum.live_count++;                               \
        else OK(release);                                                                          \
        __asm__ volatile("" ::: "memory");                                                         \
    }
SITE(small_blocks, cuMemAlloc(&address, bytes), cuMemFree(address))
SITE(mixed_blocks, cuMemAlloc(&address, bytes), cuMemFree(address))
SITE(large_blocks, cuMemAllocAsync(&address, bytes, NULL), cuMemFreeAsync(address, NULL))

static uint64_t step(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void print(const char *name, const Sum *sum) {
    const char *figures[] = {"live", "live_count", "all", "all_count"};
    const uint64_t values[] = {sum->live, sum->live_count, sum->all, sum->all_count};
    char fact_name[64];
    for (int i = 0; i < 4; i++) {
        snprintf(fact_name, sizeof fact_name, "%s_%s", name, figures[i]);
        fact(fact_name, values[i]);
    }
}

int main(void) {
    CUcontext context;
    uint64_t state = 1;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < ROUNDS; i++) {
        size_t mixed = 512 * (1 + step(&state) % 200), large = (256 << 10) + 512 * (step(&state) % 1000);
        small_blocks(4096, i % 3 == 0);
        mixed_blocks(mixed, i % 3 == 0);
        large_blocks(large, i % 3 == 0);
    }
    print("small_blocks", &small_blocks_sum);
    print("mixed_blocks", &mixed_blocks_sum);
    print("large_blocks", &large_blocks_sum);
    return 0;
}
