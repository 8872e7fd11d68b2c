// The program in the images: a training loop on the fake driver that forgets its labels, doubles a workspace and fills a
// cache. `train STEPS MILLISECONDS` sets the number of steps and the time of each.
#include <cstdlib>
#include <unistd.h>
#include <vector>

using Address = unsigned long long;
extern "C" {
int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(Address *out, size_t bytes);
int cuMemAllocManaged(Address *out, size_t bytes, unsigned flags);
int cuMemFree_v2(Address address);
int cuMemAllocAsync(Address *out, size_t bytes, void *stream);
int cuMemFreeAsync(Address address, void *stream);
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
}

constexpr size_t MIB = 1 << 20;
#define STEP __attribute__((noinline))
// Keeps a call from becoming a jump, so that its caller is on the stack.
#define AFTER_CALL asm volatile("" ::: "memory")

struct Batch {
    Address pixels = 0, labels = 0;
};

STEP static Batch load_batch() {
    Batch batch;
    cuMemAlloc_v2(&batch.pixels, 96 * MIB);
    cuMemAlloc_v2(&batch.labels, 6 * MIB);
    return batch;
}

struct Cache {
    std::vector<Address> entries;
    STEP void fill() {
        if (entries.size() == 24) return;
        entries.push_back(0);
        cuMemAllocManaged(&entries.back(), 16 * MIB, 1);
        AFTER_CALL;
    }
};

struct Workspace {
    Address memory = 0;
    size_t bytes = 0;
    STEP void reserve(size_t needed) {
        if (needed <= bytes) return;
        if (memory) cuMemFreeAsync(memory, nullptr);
        cuMemAllocAsync(&memory, bytes = needed, nullptr);
        AFTER_CALL;
    }
};

struct Model {
    Address weights[12], moments[12];
    STEP void load_weights() {
        for (Address &layer : weights) cuMemAlloc_v2(&layer, 80 * MIB);
    }
    STEP void create_optimizer() {
        for (Address &layer : moments) cuMemAlloc_v2(&layer, 40 * MIB);
    }
    STEP void forward(int step) {
        Address activations = 0;
        cuMemAllocAsync(&activations, (120 + 40 * (step % 3)) * MIB, nullptr);
        cuMemFreeAsync(activations, nullptr);
        AFTER_CALL;
    }
};

struct Trainer {
    Model model;
    Cache cache;
    Workspace workspace;
    STEP void step(int number) {
        Batch batch = load_batch();
        cache.fill();
        workspace.reserve((size_t)(64 + 32 * (number / 8)) * MIB);
        model.forward(number);
        cuMemFree_v2(batch.pixels); // and nothing frees the labels
    }
};

STEP static void *staging_buffer() {
    void *out = nullptr;
    cuMemHostAlloc(&out, 64 * MIB, 0);
    AFTER_CALL;
    return out;
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 40, pause = argc > 2 ? atoi(argv[2]) : 0;
    int device = 0;
    void *context = nullptr;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context)) return 1;
    Trainer trainer;
    trainer.model.load_weights();
    trainer.model.create_optimizer();
    staging_buffer();
    for (int step = 0; step < steps; step++) {
        trainer.step(step);
        usleep(pause * 1000);
    }
    return 0;
}
