// What calls of the real driver cost, with and without a recorder.
//
// Prints `NANOSECONDS n`, of one operation; or, under switch.so, a line for each way of a call: `WAY name n ratio`, where the
// ratio is the median of those to the bare call of the same turn.
//
// Pairs are timed in chunks short enough that most are not interrupted, and the median counts. Blocks that stay are timed as
// a whole, since some of them cost the driver much more.
#include "../../tests/gpu/victims/victim.h"

#include <algorithm>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <time.h>
#include <vector>

static double now(void) {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * time.tv_sec + time.tv_nsec;
}

static double median(std::vector<double> each) {
    std::nth_element(each.begin(), each.begin() + each.size() / 2, each.end());
    return each[each.size() / 2];
}

// Calls `chunk`, which returns the nanoseconds of one operation, `times` times in each way.
template <class Chunk> static void report(int times, Chunk chunk) {
    static const char *const names[] = {"bare", "culeak", "empty_hook", "clock_only"};
    enum { WAYS = sizeof names / sizeof *names };
    auto switch_to = (void (*)(int))dlsym(RTLD_DEFAULT, "switch_to");
    int ways = switch_to ? WAYS : 1;
    std::vector<double> each[WAYS], ratios[WAYS];
    for (int way = 0; way < ways; way++) {
        if (switch_to) switch_to(way);
        chunk(); // warm
    }
    for (int i = 0; i < times; i++) {
        double turn[WAYS];
        for (int j = 0; j < ways; j++) {
            int way = (i + j) % ways;
            if (switch_to) switch_to(way);
            turn[way] = chunk();
        }
        for (int way = 0; way < ways; way++) {
            each[way].push_back(turn[way]);
            ratios[way].push_back(turn[way] / turn[0]);
        }
    }
    if (!switch_to) say("NANOSECONDS %.1f", median(each[0]));
    for (int way = 0; switch_to && way < ways; way++) say("WAY %s %.1f %.4f", names[way], median(each[way]), median(ratios[way]));
}

// Nanoseconds of one of `operations` runs of `once`.
template <class Once> static double each_of(int operations, Once once) {
    double started = now();
    for (int i = 0; i < operations; i++) once(i);
    return (now() - started) / operations;
}

// cudaMallocAsync and cudaFreeAsync: the cheapest pair, for which the recorder's share is largest.
CASE(ordered_pair) {
    void *pointer;
    OK(cudaMallocAsync(&pointer, 1 << 20, 0)); // keeps the pool warm
    report(400, [&] {
        return each_of(250, [&](int) {
            OK(cudaMallocAsync(&pointer, 4096, 0));
            OK(cudaFreeAsync(pointer, 0));
        });
    });
}

CASE(plain_pair) {
    void *pointer;
    OK(cudaMalloc(&pointer, 512));
    report(40, [&] {
        return each_of(250, [&](int) {
            OK(cudaMalloc(&pointer, 4096));
            OK(cudaFree(pointer));
        });
    });
}

CASE(many_live) {
    enum { BLOCKS = 20000 };
    static void *blocks[BLOCKS];
    OK(cudaFree(0));
    report(7, [&] {
        double each = each_of(BLOCKS, [&](int i) { OK(cudaMalloc(&blocks[i], 512)); });
        for (int i = 0; i < BLOCKS; i++) OK(cudaFree(blocks[i]));
        return each;
    });
}

static const Case cases[] = {ENTRY(ordered_pair), ENTRY(plain_pair), ENTRY(many_live), {NULL, NULL}};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
