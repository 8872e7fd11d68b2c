// What allocating costs, for comparing runs with and without a recorder. Prints one line: nanoseconds per operation.
#include "../../tests/gpu/victims/victim.h"

#include <cuda_runtime.h>
#include <time.h>

static double now(void) {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * time.tv_sec + time.tv_nsec;
}

static void report(double started, int operations) { say("NANOSECONDS %.1f", (now() - started) / operations); }

// cudaMallocAsync and cudaFreeAsync: the cheapest pair there is, so the dearest in proportion.
CASE(ordered_pair) {
    enum { PAIRS = 100000 };
    void *pointer;
    OK(cudaMallocAsync(&pointer, 1 << 20, 0)); // keeps the pool warm
    double started = now();
    for (int i = 0; i < PAIRS; i++) {
        OK(cudaMallocAsync(&pointer, 4096, 0));
        OK(cudaFreeAsync(pointer, 0));
    }
    report(started, PAIRS);
}

CASE(plain_pair) {
    enum { PAIRS = 10000 };
    void *pointer;
    OK(cudaMalloc(&pointer, 512));
    double started = now();
    for (int i = 0; i < PAIRS; i++) {
        OK(cudaMalloc(&pointer, 4096));
        OK(cudaFree(pointer));
    }
    report(started, PAIRS);
}

CASE(many_live) {
    enum { BLOCKS = 20000 };
    void *pointer;
    OK(cudaFree(0));
    double started = now();
    for (int i = 0; i < BLOCKS; i++) OK(cudaMalloc(&pointer, 512));
    report(started, BLOCKS);
}

static const Case cases[] = {ENTRY(ordered_pair), ENTRY(plain_pair), ENTRY(many_live), {NULL, NULL}};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
