// A training loop with typical leaks. The reports in the README are recorded from this program.
//   nvcc -g -O2 -lineinfo train.cu -o train && culeak run -- ./train
#include <cstdio>
#include <cuda_runtime.h>

struct Batch {
    float *pixels = nullptr;
    float *labels = nullptr;
};

static Batch load_batch(size_t bytes) {
    Batch batch;
    cudaMalloc(&batch.pixels, bytes);
    cudaMalloc(&batch.labels, bytes / 100);
    return batch;
}

static void train_step(int step, size_t bytes) {
    Batch batch = load_batch(bytes);
    cudaMemset(batch.pixels, step, bytes);
    cudaFree(batch.pixels); // the labels are never freed
}

static void *staging_buffer(size_t bytes) {
    void *memory = nullptr;
    cudaMallocHost(&memory, bytes);
    return memory;
}

static void try_huge_cache() {
    void *cache = nullptr;
    if (cudaMalloc(&cache, 64ull << 40) != cudaSuccess) cudaGetLastError(); // falls back to no cache
}

int main(int argc, char **) {
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    void *staging = staging_buffer(32 << 20);
    void *scratch = nullptr;
    cudaMallocAsync(&scratch, 8 << 20, stream);
    try_huge_cache();
    for (int step = 0; step < 100; step++) {
        train_step(step, 200 << 20);
        if (step == 49 && argc > 1) {
            printf("half way\n");
            fflush(stdout);
            getchar();
        }
    }
    cudaFreeAsync(scratch, stream);
    cudaStreamSynchronize(stream);
    (void)staging;
    return 0;
}
