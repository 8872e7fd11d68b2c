// `run`: tensor blocks straight from PyTorch's allocator: some stay, many are freed, one request fails. Prints the allocator's totals.
// `hold`: blocks of all sizes, on three streams and in a private pool, of which every second one stays. Prints the process, the number of
// blocks and the allocator's totals, and waits for the end of its input.
// `storages`: storages of tensors, whose allocator's tables are damaged by its argument. Prints as `hold` does, without what is reserved.
// `take`: one block, for train.py.
// `reserves`: requests as programs make them, the same ones under all settings. Prints what the allocator had reserved at most.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <unistd.h>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;
// Of libtorch_cuda; without it, guards of devices fail.
namespace c10::cuda::_internal { void setHasPrimaryContext(bool (*)(DeviceIndex)); }

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

extern "C" void take(size_t bytes) {
    static const bool ready = (allocator::init(1), true);
    if (ready) allocator::raw_alloc(bytes);
}

namespace {

uint64_t state = 1;
// Up to, and without, a number.
size_t upto(size_t most) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % most;
}

constexpr size_t KIB = 1 << 10, MIB = 1 << 20;
using Blocks = std::vector<void *>;

void give_all(Blocks &blocks) {
    for (auto block = blocks.rbegin(); block != blocks.rend(); block++) allocator::raw_delete(*block);
    blocks.clear();
}

// Weights that stay; activations of another batch size in each step, freed in reverse; gradients; small blocks between them.
void train() {
    Blocks weights, activations, gradients;
    for (int layer = 0; layer < 12; layer++) weights.push_back(allocator::raw_alloc((layer % 4 + 1) * 4 * MIB));
    for (int step = 0; step < 40; step++) {
        size_t batch = 1 + upto(64);
        for (int layer = 0; layer < 12; layer++) {
            activations.push_back(allocator::raw_alloc(batch * 300 * KIB));
            activations.push_back(allocator::raw_alloc(batch * 4 * KIB));
            allocator::raw_delete(allocator::raw_alloc(batch * 900 * KIB));
        }
        for (int layer = 0; layer < 12; layer++) gradients.push_back(allocator::raw_alloc((layer % 4 + 1) * 4 * MIB));
        give_all(activations);
        give_all(gradients);
    }
}

// A cache that grows by concatenation beside blocks that stay.
void cache() {
    void *held = allocator::raw_alloc(8 * MIB);
    size_t bytes = 8 * MIB;
    for (int round = 0; round < 80; round++) {
        size_t more = (1 + upto(40)) * 512 * KIB;
        void *added = allocator::raw_alloc(more), *both = allocator::raw_alloc(bytes + more);
        allocator::raw_delete(held);
        allocator::raw_delete(added);
        held = both, bytes += more;
        allocator::raw_alloc(1200 * KIB + upto(3 * MIB));
    }
}

// pytorch#193400: a block that stays after each pair keeps the pair's memory from the end of an expandable segment.
void fenced() {
    allocator::raw_alloc(64 * MIB);
    for (int cycle = 0; cycle < 101; cycle++) {
        void *large = allocator::raw_alloc(91 * MIB), *half = allocator::raw_alloc(91 * MIB / 2);
        allocator::raw_alloc(2 * MIB);
        allocator::raw_delete(large);
        allocator::raw_delete(half);
    }
}

// vLLM#41268: each of 36 layers has a weight of 530 MiB, converted through a copy, and one of 270 MiB, which lands where the copy was.
void converted() {
    for (int layer = 0; layer < 36; layer++) {
        void *copy = allocator::raw_alloc(530 * MIB);
        allocator::raw_alloc(530 * MIB);
        allocator::raw_delete(copy);
        allocator::raw_alloc(270 * MIB);
    }
}

// As `waiting` of tests/gpu/victims/fw_fragmentation.py: blocks that are freed while another stream may use them.
void waiting() {
    auto other = reinterpret_cast<cudaStream_t>(0x40);
    for (int round = 0; round < 60; round++) {
        size_t bytes = (2 + upto(58)) * MIB;
        auto batch = allocator::get()->allocate(bytes);
        allocator::raw_alloc(2 * MIB);
        void *work = allocator::raw_alloc_with_stream(bytes, other);
        allocator::recordStream(batch, c10::cuda::getStreamFromExternal(other, 0));
        batch.clear();
        void *more = allocator::raw_alloc_with_stream((2 + upto(58)) * MIB, other);
        cudaDeviceSynchronize();
        allocator::raw_delete(work);
        allocator::raw_delete(more);
    }
}

// A private pool of the program's (`MemPool`), beside other blocks.
void pooled() {
    for (int round = 0; round < 60; round++) {
        void *first = allocator::raw_alloc((2 + upto(58)) * MIB);
        allocator::beginAllocateToPool(0, {0, 1}, [](cudaStream_t) { return true; });
        void *second = allocator::raw_alloc((2 + upto(58)) * MIB);
        allocator::raw_alloc(2 * MIB);
        allocator::endAllocateToPool(0, {0, 1});
        allocator::raw_delete(first);
        allocator::raw_delete(second);
    }
}

// Blocks of any size, each for a random time. `stream`: of the round.
void random(int rounds, const std::function<cudaStream_t(int)> &stream, const std::function<void(int)> &at) {
    std::multimap<size_t, void *> live;
    for (int round = 0; round < rounds; round++) {
        while (!live.empty() && live.begin()->first <= (size_t)round) {
            allocator::raw_delete(live.begin()->second);
            live.erase(live.begin());
        }
        size_t bytes = (1 + upto(1000)) << upto(18);
        live.emplace(round + 1 + upto(60), allocator::raw_alloc_with_stream(bytes, stream(round)));
        at(round);
    }
}

} // namespace

extern "C" int reserves(const char *program) {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    allocator::init(1);
    auto default_stream = [](int) -> cudaStream_t { return nullptr; };
    auto nothing = [](int) {};
    if (!std::strcmp(program, "called")) allocator::setAllocatorSettings("max_split_size_mb:32");
    if (!std::strcmp(program, "train") || !std::strcmp(program, "called")) train();
    if (!std::strcmp(program, "cache")) cache();
    if (!std::strcmp(program, "fenced")) fenced();
    if (!std::strcmp(program, "converted")) converted();
    if (!std::strcmp(program, "waiting")) waiting();
    if (!std::strcmp(program, "pooled")) pooled();
    if (!std::strcmp(program, "random")) random(5000, default_stream, nothing);
    if (!std::strcmp(program, "emptied")) random(5000, default_stream, [](int round) { if (round % 701 == 700) allocator::emptyCache(); });
    if (!std::strcmp(program, "streams")) random(3000, [](int round) { return reinterpret_cast<cudaStream_t>(round % 3 ? 0 : 0x40); }, nothing);
    auto held = allocator::getDeviceStats(0);
    std::printf("%ld\n", (long)held.reserved_bytes[0].peak);
    std::fflush(stdout);
    _exit(0);
}

extern "C" int hold() {
    allocator::init(1);
    auto some = [](int count) {
        for (int number = 0; number < count; number++) {
            size_t bytes = (1 + upto(1000)) << upto(12);
            void *block = allocator::raw_alloc_with_stream(bytes, reinterpret_cast<cudaStream_t>(number % 3 * 0x40));
            if (number % 2) allocator::raw_delete(block);
        }
    };
    some(2000);
    // Its type was in another namespace before 2.9.
    const std::pair<unsigned long long, unsigned long long> pool{0, 1};
    allocator::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    some(100);
    allocator::endAllocateToPool(0, pool);
    auto held = allocator::getDeviceStats(0);
    std::printf("%d %ld %ld %ld\n", (int)getpid(), (long)held.allocation[0].current, (long)held.allocated_bytes[0].current, (long)held.reserved_bytes[0].current);
    std::fflush(stdout);
    std::getchar();
    _exit(0);
}

extern "C" int storages(int damaged) {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    allocator::init(1);
    static std::vector<c10::intrusive_ptr<c10::StorageImpl>> kept;
    long bytes = 0;
    for (int number = 0; number < 1000; number++) {
        long size = long(1 + upto(1000)) << upto(12);
        auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size, allocator::get(), true);
        if (number % 2) continue;
        kept.push_back(storage);
        bytes += size;
    }
    // Another layout: nothing is where it was.
    if (damaged) std::memset((char *)(void *)allocator::get() + 64, 0x55, 16 << 10);
    std::printf("%d %ld %ld\n", (int)getpid(), (long)kept.size(), bytes);
    std::fflush(stdout);
    std::getchar();
    _exit(0);
}
