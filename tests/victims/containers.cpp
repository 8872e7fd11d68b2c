/* The constructor of a user's tensor, and a vector that grows, request memory for one line. */
extern "C" {
#include "victim.h"
}
#include <memory>
#include <vector>

namespace model {
struct Tensor {
    CUdeviceptr memory = 0;
    explicit NOINLINE Tensor(std::size_t bytes) {
        OK(cuMemAlloc_v2(&memory, bytes));
        STAY();
    }
};

struct Cache {
    std::vector<std::unique_ptr<Tensor>> all;
    NOINLINE void put(std::size_t bytes) {
        all.push_back(std::make_unique<Tensor>(bytes));
        STAY();
    }
};
} // namespace model

/* What a copy requests is requested by the vector, from two of its functions. */
template <class T> struct device_allocator {
    using value_type = T;
    T *allocate(std::size_t count) {
        CUdeviceptr memory;
        OK(cuMemAlloc_v2(&memory, count * sizeof(T)));
        STAY();
        return static_cast<T *>(std::malloc(count * sizeof(T)));
    }
    void deallocate(T *memory, std::size_t) { std::free(memory); }
    bool operator==(device_allocator const &) const { return true; }
    bool operator!=(device_allocator const &) const { return false; }
};

static NOINLINE void grows(std::vector<float, device_allocator<float>> &values, int count) {
    for (int value = 0; value < count; value++) values.push_back(static_cast<float>(value));
    STAY();
}

static NOINLINE void steps(model::Cache &cache) {
    model::Tensor activations(1 << 20);
    cache.put(4 << 20);
    STAY();
}

static void usual() {
    start_cuda();
    auto *cache = new model::Cache;
    auto *values = new std::vector<float, device_allocator<float>>;
    for (int step = 0; step < 3; step++) steps(*cache);
    grows(*values, 9);
}

MAIN(BEHAVIOUR(usual))
