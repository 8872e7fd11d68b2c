/* What a new stack costs: allocates once at each of STACKS distinct stacks of FRAMES frames, bare and recorded by turns of CHUNK stacks,
 * and prints the medians of both in nanoseconds, and the page faults of a recorded one. Linked with a driver that does nothing, so that
 * all of the cost is the recorder's.
 *
 *   stacks STACKS FRAMES
 *
 * Each frame but the outermost calls one of two functions by a bit of the stack's number, so stacks share their outer frames as those
 * of a program do. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

typedef uint64_t address;
int cuInit(unsigned);
int cuMemAlloc_v2(address *, size_t), plain_cuMemAlloc_v2(address *, size_t);

enum { CHUNK = 250 };
static volatile int sink;
static int recorded;

static void descend(unsigned long number, int left);
#define CALLS(name)                                                                       \
    __attribute__((noinline, noclone)) static void name(unsigned long number, int left) { \
        descend(number, left);                                                            \
        sink++; /* no tail call */                                                        \
    }
CALLS(one)
CALLS(other)

__attribute__((always_inline)) static inline void descend(unsigned long number, int left) {
    address block;
    if (left > 0) (number & 1 ? one : other)(number >> 1, left - 1);
    else if (recorded) cuMemAlloc_v2(&block, 512);
    else plain_cuMemAlloc_v2(&block, 512);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * time.tv_sec + time.tv_nsec;
}

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **arguments) {
    long stacks = count > 1 ? atol(arguments[1]) : 100000, frames = count > 2 ? atol(arguments[2]) : 22;
    if (stacks < CHUNK || frames < 5 || frames - 4 < 8 * (long)sizeof stacks - __builtin_clzl(stacks)) {
        fprintf(stderr, "usage: %s STACKS FRAMES: from %d stacks; each doubling of the stacks needs one frame more\n", arguments[0], CHUNK);
        return 2;
    }
    cuInit(0);
    long chunks = stacks / CHUNK, faulted = 0;
    double *times[] = {calloc(chunks, sizeof(double)), calloc(chunks, sizeof(double))};
    for (long chunk = 0; chunk < chunks; chunk++)
        for (recorded = 0; recorded < 2; recorded++) {
            long before = faults();
            double began = now();
            /* Below are this function and two that start the program; `descend` is part of its callers. */
            for (long number = chunk * CHUNK; number < (chunk + 1) * CHUNK; number++) descend(number, frames - 3);
            times[recorded][chunk] = (now() - began) / CHUNK;
            faulted += recorded ? faults() - before : 0;
        }
    double sum = 0;
    for (long chunk = 0; chunk < chunks; chunk++) sum += times[1][chunk];
    for (int way = 0; way < 2; way++) qsort(times[way], chunks, sizeof(double), ascending);
    printf("bare %.0f ns, recorded %.0f ns (mean %.0f), %.2f page faults\n", times[0][chunks / 2], times[1][chunks / 2], sum / chunks, faulted / (double)(chunks * CHUNK));
    return 0;
}
