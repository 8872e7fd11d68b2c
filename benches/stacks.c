/* What new stacks cost: allocates once at each of STACKS distinct stacks of FRAMES frames, and prints the nanoseconds of one
 * allocation. Linked with a driver that does nothing, so that all of the cost is the recorder's.
 *
 *   stacks STACKS FRAMES
 *
 * Each frame but the outermost calls one of two functions by a bit of the stack's number, so stacks share their outer frames as those
 * of a program do. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t address;
int cuInit(unsigned);
int cuMemAlloc_v2(address *, size_t);

static volatile int sink;

static void descend(unsigned long number, int left);
#define CALLS(name) \
    __attribute__((noinline, noclone)) static void name(unsigned long number, int left) { \
        descend(number, left); \
        sink++; /* no tail call */ \
    }
CALLS(one)
CALLS(other)

__attribute__((always_inline)) static inline void descend(unsigned long number, int left) {
    address block;
    if (left == 0) cuMemAlloc_v2(&block, 512);
    else (number & 1 ? one : other)(number >> 1, left - 1);
}

int main(int count, char **arguments) {
    long stacks = count > 1 ? atol(arguments[1]) : 100000, frames = count > 2 ? atol(arguments[2]) : 22;
    if (stacks < 1 || frames < 5 || frames - 4 < 8 * (long)sizeof stacks - __builtin_clzl(stacks)) {
        fprintf(stderr, "usage: %s STACKS FRAMES: each doubling of the stacks needs one frame more\n", arguments[0]);
        return 2;
    }
    cuInit(0);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    /* Below are this function and two that start the program; `descend` is part of its callers. */
    for (long number = 0; number < stacks; number++) descend(number, frames - 3);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.0f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + end.tv_nsec - begin.tv_nsec) / stacks);
    return 0;
}
