// Tensor blocks straight from PyTorch's allocator: some stay, many are freed, one request fails. Prints the allocator's totals.
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdio>
#include <unistd.h>

namespace allocator = c10::cuda::CUDACachingAllocator;

extern "C" int run() {
    long events = 0;
    auto take = [&](size_t bytes) { events++; return allocator::raw_alloc(bytes); };
    auto give = [&](void *block) { events++; allocator::raw_delete(block); };
    allocator::init(1);
    take(1000);
    void *gone = take(5000);
    take(3 << 20);
    give(gone);
    take(700);
    for (int round = 0; round < 100000; round++) give(take(2048));
    try {
        allocator::raw_alloc(1ull << 50);
    } catch (const std::exception &) {
        std::printf("failed yes\n");
    }
    auto held = allocator::getDeviceStats(0);
    std::printf("allocated %ld\nreserved %ld\nevents %ld\n", (long)held.allocated_bytes[0].current, (long)held.reserved_bytes[0].current, events);
    std::fflush(stdout);
    _exit(0);
}
