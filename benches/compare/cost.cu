// What calls of the real driver cost, with and without a recorder. Prints one line: nanoseconds per operation.
//
// Pairs are timed in chunks short enough that most are not interrupted, and the median counts. Blocks that stay are timed as
// a whole, since some of them cost the driver much more; the median of five rounds counts.
#include "../../tests/gpu/victims/victim.h"

#include <algorithm>
#include <cuda_runtime.h>
#include <time.h>
#include <vector>

static double now(void) {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * time.tv_sec + time.tv_nsec;
}

// Times `times` chunks of `operations` runs of `once`.
template <class Once> static void report(int times, int operations, Once once) {
    std::vector<double> each;
    for (int i = 0; i < times; i++) {
        double started = now();
        for (int j = 0; j < operations; j++) once(j);
        each.push_back((now() - started) / operations);
    }
    std::nth_element(each.begin(), each.begin() + times / 2, each.end());
    say("NANOSECONDS %.1f", each[times / 2]);
}

// cudaMallocAsync and cudaFreeAsync: the cheapest pair, for which the recorder's share is largest.
CASE(ordered_pair) {
    void *pointer;
    OK(cudaMallocAsync(&pointer, 1 << 20, 0)); // keeps the pool warm
    report(400, 250, [&](int) {
        OK(cudaMallocAsync(&pointer, 4096, 0));
        OK(cudaFreeAsync(pointer, 0));
    });
}

CASE(plain_pair) {
    void *pointer;
    OK(cudaMalloc(&pointer, 512));
    report(40, 250, [&](int) {
        OK(cudaMalloc(&pointer, 4096));
        OK(cudaFree(pointer));
    });
}

CASE(many_live) {
    enum { BLOCKS = 20000, ROUNDS = 5 };
    static void *blocks[BLOCKS];
    OK(cudaFree(0));
    double each[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double started = now();
        for (int i = 0; i < BLOCKS; i++) OK(cudaMalloc(&blocks[i], 512));
        each[round] = (now() - started) / BLOCKS;
        for (int i = 0; round + 1 < ROUNDS && i < BLOCKS; i++) OK(cudaFree(blocks[i]));
    }
    std::sort(each, each + ROUNDS);
    say("NANOSECONDS %.1f", each[ROUNDS / 2]);
}

static const Case cases[] = {ENTRY(ordered_pair), ENTRY(plain_pair), ENTRY(many_live), {NULL, NULL}};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
