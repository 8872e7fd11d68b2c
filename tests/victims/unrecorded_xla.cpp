// An allocator like that of XLA, in a program that is never recorded. Compiled twice: with -DALLOCATOR into xla_cuda_plugin.so.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace tsl {
class BFCAllocator {
  public:
    struct Chunk {
        size_t size, requested;
        int64_t number;
        char *address;
        size_t previous, next;
        int bin;
        uint64_t freed;
        char tag;
    };
    explicit BFCAllocator(const char *name);
    virtual ~BFCAllocator();
    char *add(size_t size, size_t requested, bool in_use);

  private:
    std::string name;
    std::vector<size_t> others{1, 2, 3};
    std::vector<Chunk> chunks;
    size_t in_use = 0;
};
} // namespace tsl

#ifdef ALLOCATOR
tsl::BFCAllocator::BFCAllocator(const char *name) : name(name) {}
tsl::BFCAllocator::~BFCAllocator() = default;

char *tsl::BFCAllocator::add(size_t size, size_t requested, bool is_used) {
    size_t nth = chunks.size();
    char *address = nth ? chunks[nth - 1].address + chunks[nth - 1].size : reinterpret_cast<char *>(0x7f2000000000);
    if (nth)
        chunks[nth - 1].next = nth;
    chunks.push_back({size, requested, is_used ? int64_t(nth + 1) : -1, address, nth - 1, SIZE_MAX, -1, 0, 1});
    in_use += is_used ? size : 0;
    return address;
}
#else
char *kept[40];

int main() {
    auto *host = new tsl::BFCAllocator("xla_gpu_host_bfc"), *device = new tsl::BFCAllocator("GPU_1_bfc");
    // Of a device that is not used.
    new tsl::BFCAllocator("GPU_0_bfc");
    host->add(512, 500, true);
    for (int i = 0; i < 40; i++) {
        kept[i] = device->add(4096, 4000, true);
        device->add(256, 0, false);
    }
    printf("40 %d\nready\n", 40 * 4096);
    fflush(stdout);
    return getchar() == 'x';
}
#endif
