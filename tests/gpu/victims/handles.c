// 16 threads that exist at the same time, each with a handle of cuBLAS and one multiplication; then the threads end.
#include "steps.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

enum { THREADS = 16, WIDTH = 512 };

static cublasHandle_t handles[THREADS];
static pthread_barrier_t everyone;

static void *work(void *which) {
    cublasHandle_t *handle = &handles[(intptr_t)which];
    float one = 1, zero = 0, *blocks[3];
    OK(cudaSetDevice(0));
    for (int i = 0; i < 3; i++) OK(cudaMalloc((void **)&blocks[i], WIDTH * WIDTH * sizeof(float)));
    OK(cudaMemset(blocks[0], 0, WIDTH * WIDTH * sizeof(float)));
    OK(cudaMemset(blocks[1], 0, WIDTH * WIDTH * sizeof(float)));
    OK(cublasCreate(handle)); // site: handle_created
    OK(cublasSgemm(*handle, CUBLAS_OP_N, CUBLAS_OP_N, WIDTH, WIDTH, WIDTH, &one, blocks[0], WIDTH, blocks[1], WIDTH, &zero, blocks[2], WIDTH)); // site: handle_used
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 3; i++) OK(cudaFree(blocks[i]));
    pthread_barrier_wait(&everyone);
    return NULL;
}

static void start(void) {
    OK(cudaSetDevice(0));
    OK(cudaFree(NULL));
    step("context");
}

static void run_threads(void) {
    pthread_t threads[THREADS];
    OK(pthread_barrier_init(&everyone, NULL, THREADS));
    for (intptr_t i = 0; i < THREADS; i++) OK(pthread_create(&threads[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++) OK(pthread_join(threads[i], NULL));
    step("threads_ended");
    fact("handles", THREADS);
}

CASE(kept) {
    start();
    run_threads();
    wait_for_reader();
}

CASE(destroyed) {
    start();
    run_threads();
    for (int i = 0; i < THREADS; i++) OK(cublasDestroy(handles[i]));
    step("destroyed");
}

int main(int argc, char **argv) {
    static const Case cases[] = {ENTRY(kept), ENTRY(destroyed), {NULL, NULL}};
    return run_case(cases, argc, argv);
}
