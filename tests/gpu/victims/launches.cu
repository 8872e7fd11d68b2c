// A kernel that launches another one. Argument: the limit of pending launches, set when the code is loaded.
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

__global__ void child(int *word) { *word += 1; }
__global__ void parent(int *word) { child<<<1, 1>>>(word); }

static void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

int main(int argc, char **argv) {
    int *word = nullptr, count = 0;
    check(cudaMalloc(&word, sizeof *word), "cudaMalloc");
    check(cudaMemset(word, 0, sizeof *word), "cudaMemset");
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, parent), "cudaFuncGetAttributes");
    if (argc > 1)
        check(cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, strtoull(argv[1], nullptr, 10)), "the limit");
    for (int turn = 0; turn < 2; turn++) {
        parent<<<1, 1>>>(word);
        check(cudaDeviceSynchronize(), "a launch");
    }
    check(cudaMemcpy(&count, word, sizeof count, cudaMemcpyDeviceToHost), "cudaMemcpy");
    printf("FACT %d launches 0x%x\n", getpid(), count);
    return count == 2 ? 0 : 1;
}
