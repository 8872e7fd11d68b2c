/* Time of one allocation and of one free on a driver that does nothing, at a given depth of the stack. Built against
 * tests/victims/tiny_driver.c; with -DMALLOC the same with malloc and free, for heap profilers to be put beside. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef MALLOC
typedef void *address;
static void start(void) {}
static void get(address *a) { *a = malloc(512); }
static void give(address a) { free(a); }
#else
typedef uint64_t address;
int cuInit(unsigned);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
static void start(void) { cuInit(0); }
static void get(address *a) { cuMemAlloc_v2(a, 512); }
static void give(address a) { cuMemFree_v2(a); }
#endif

enum { ROUNDS = 20000, REPEATS = 15 };
static address blocks[ROUNDS];
static double allocation[REPEATS], release[REPEATS];
static volatile int sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

__attribute__((noinline)) static void deep(int frames, int repeat) {
    if (frames > 0) {
        deep(frames - 1, repeat);
        sink++; /* no tail call */
        return;
    }
    double begin = now();
    for (int i = 0; i < ROUNDS; i++) get(&blocks[i]);
    double middle = now();
    for (int i = 0; i < ROUNDS; i++) give(blocks[i]);
    allocation[repeat] = (middle - begin) / ROUNDS;
    release[repeat] = (now() - middle) / ROUNDS;
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **arguments) {
    int frames = count > 1 ? atoi(arguments[1]) : 20;
    start();
    for (int repeat = 0; repeat < REPEATS; repeat++) deep(frames - 2, repeat); /* main and deep itself */
    qsort(allocation, REPEATS, sizeof *allocation, ascending);
    qsort(release, REPEATS, sizeof *release, ascending);
    printf("%.0f %.0f\n", allocation[REPEATS / 2], release[REPEATS / 2]);
    return 0;
}
