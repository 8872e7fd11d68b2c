/* What one allocation and one free cost the caller. Linked with a driver that does nothing, so that all of the cost is the
 * recorder's; with -DSTREAM or -DEVENT the same of streams or events, which are objects without an address; with -DSEGMENT of
 * memory that the kernel driver gives; with -DMALLOC the same with malloc and free, for comparison with heap profilers; with
 * -DCONTROL calls that do ten locked additions to a thread-local word, which shows how much threads on this machine slow each
 * other down without sharing anything.
 *
 *   event FRAMES [THREADS]
 *
 * prints three numbers: nanoseconds of an allocation and of a free at the end of a stack of FRAMES frames, when ROUNDS
 * blocks are allocated and then freed, and pairs a second of all threads together when each has 64 live blocks.
 * The clock is read every CHUNK calls and the median of all chunks counts, so that interruptions by other processes do not.
 * With several threads the first two are means over the threads. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined CONTROL
typedef uint64_t address;
static __thread struct { uint64_t word, others[15]; } __attribute__((aligned(128))) own;
static void start(void) {}
__attribute__((noinline)) static void add(void) { for (int i = 0; i < 10; i++) __atomic_fetch_add(&own.word, 1, __ATOMIC_SEQ_CST); }
static void get(address *a) { *a = 0; add(); }
static void give(address a) { (void)a; add(); }
#elif defined MALLOC
typedef void *address;
static void start(void) {}
static void get(address *a) { *a = malloc(512); }
static void give(address a) { free(a); }
#elif defined STREAM
typedef void *address;
int cuInit(unsigned);
int cuStreamCreate(address *, unsigned);
int cuStreamDestroy_v2(address);
static void start(void) { cuInit(0); }
static void get(address *a) { cuStreamCreate(a, 1); }
static void give(address a) { cuStreamDestroy_v2(a); }
#elif defined EVENT
typedef void *address;
int cuInit(unsigned);
int cuEventCreate(address *, unsigned);
int cuEventDestroy_v2(address);
static void start(void) { cuInit(0); }
static void get(address *a) { cuEventCreate(a, 2); }
static void give(address a) { cuEventDestroy_v2(a); }
#elif defined SEGMENT
#include "segment.h"
typedef uint32_t address;
int cuInit(unsigned);
static uint32_t objects = FIRST;
static void start(void) { cuInit(0); open_device(); }
static void get(address *a) { *a = __atomic_fetch_add(&objects, 1, __ATOMIC_RELAXED); request(DEVICE, *a, CLASS_MEMORY, 2 << 20); }
static void give(address a) { release(a); }
#else
typedef uint64_t address;
int cuInit(unsigned);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
static void start(void) { cuInit(0); }
static void get(address *a) { cuMemAlloc_v2(a, 512); }
static void give(address a) { cuMemFree_v2(a); }
#endif

enum { ROUNDS = 20000, REPEATS = 15, CHUNK = 250, KEPT = 64, MOST = 256, CHUNKS = REPEATS * ROUNDS / CHUNK };

typedef struct {
    pthread_t thread;
    address blocks[ROUNDS];
    double allocation[CHUNKS], release[CHUNKS], pair[CHUNKS]; /* nanoseconds of one */
    volatile int sink;
} Worker;

static Worker *workers[MOST];
static int frames, threads;
static pthread_barrier_t together;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

__attribute__((noinline)) static void deep(Worker *self, int left, int repeat) {
    if (left > 0) {
        deep(self, left - 1, repeat);
        self->sink++; /* no tail call */
        return;
    }
    int chunk = repeat * (ROUNDS / CHUNK);
    pthread_barrier_wait(&together);
    for (int done = 0; done < ROUNDS; done += CHUNK) {
        double begin = now();
        for (int i = done; i < done + CHUNK; i++) get(&self->blocks[i]);
        self->allocation[chunk + done / CHUNK] = (now() - begin) / CHUNK;
    }
    for (int done = 0; done < ROUNDS; done += CHUNK) {
        double begin = now();
        for (int i = done; i < done + CHUNK; i++) give(self->blocks[i]);
        self->release[chunk + done / CHUNK] = (now() - begin) / CHUNK;
    }

    for (int i = 0; i < KEPT; i++) get(&self->blocks[i]);
    pthread_barrier_wait(&together);
    for (int done = 0; done < ROUNDS; done += CHUNK) {
        double begin = now();
        for (int i = done; i < done + CHUNK; i++) {
            give(self->blocks[i % KEPT]);
            get(&self->blocks[i % KEPT]);
        }
        self->pair[chunk + done / CHUNK] = (now() - begin) / CHUNK;
    }
    for (int i = 0; i < KEPT; i++) give(self->blocks[i]);
}

/* Below `deep` are this function and those that start a thread or the program. */
static void *work(void *self) {
    for (int repeat = 0; repeat < REPEATS; repeat++) deep(self, frames - 4, repeat);
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static double median(double *values) {
    qsort(values, CHUNKS, sizeof *values, ascending);
    return values[CHUNKS / 2];
}

int main(int count, char **arguments) {
    frames = count > 1 ? atoi(arguments[1]) : 20;
    threads = count > 2 ? atoi(arguments[2]) : 1;
    if (frames < 4 || threads < 1 || threads > MOST) {
        fprintf(stderr, "usage: %s FRAMES [THREADS]: from 4 frames, from 1 to %d threads\n", arguments[0], MOST);
        return 2;
    }
    start();
    pthread_barrier_init(&together, NULL, threads);
    for (int i = 0; i < threads; i++) workers[i] = calloc(1, sizeof(Worker));
    /* One thread runs on the main thread, so that it is a program without threads. */
    if (threads == 1) work(workers[0]);
    for (int i = 0; threads > 1 && i < threads; i++) pthread_create(&workers[i]->thread, NULL, work, workers[i]);
    for (int i = 0; threads > 1 && i < threads; i++) pthread_join(workers[i]->thread, NULL);

    double allocation = 0, release = 0, rate = 0;
    for (int i = 0; i < threads; i++) {
        allocation += median(workers[i]->allocation) / threads;
        release += median(workers[i]->release) / threads;
        rate += 1e9 / median(workers[i]->pair);
    }
    printf("%.1f %.1f %.0f\n", allocation, release, rate);
    return 0;
}
