/* What one allocation and one free cost the caller. Linked with a driver that does nothing, so that all of the cost is the
 * recorder's; with -DSTREAM or -DEVENT the same of streams or events, which are objects without an address; with -DSEGMENT of
 * memory that the kernel driver gives; with -DMALLOC of malloc and free alone, for comparison with heap profilers.
 *
 *   event FRAMES [THREADS]
 *
 * Works in several ways by turns in one process, since one process can be up to 1.7 times slower than another. A line for each way:
 *
 *   WAY NAME ALLOCATION FREE RATE RATE_ALONE CPU
 *
 * Nanoseconds of an allocation and of a free at the end of a stack of FRAMES frames, when ROUNDS blocks are allocated and then freed;
 * pairs a second of all threads together when each has 64 live blocks, and of one thread while the others wait; nanoseconds of CPU
 * time of a pair. The ways: `bare` calls the driver by names that no recorder knows; `recorded` by its own names; `control` does ten
 * locked additions to a thread-local word, which shows how fast this process is, and how much threads on this machine slow each other
 * down without sharing anything. The clock is read every CHUNK calls and the median of all chunks counts, so that interruptions by
 * other processes do not. With several threads the first two are means over the threads. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t address;
int cuInit(unsigned);

#if defined STREAM || defined EVENT
#ifdef STREAM
#define CREATE(prefix) prefix##cuStreamCreate
#define DESTROY(prefix) prefix##cuStreamDestroy_v2
enum { FLAGS = 1 };
#else
#define CREATE(prefix) prefix##cuEventCreate
#define DESTROY(prefix) prefix##cuEventDestroy_v2
enum { FLAGS = 2 };
#endif
int CREATE()(void **, unsigned), CREATE(plain_)(void **, unsigned);
int DESTROY()(void *), DESTROY(plain_)(void *);
#define GET(prefix, a) CREATE(prefix)((void **)(a), FLAGS)
#define GIVE(prefix, a) DESTROY(prefix)((void *)(a))
static void start(void) { cuInit(0); }
#elif defined SEGMENT
#include "segment.h"
static uint32_t objects = FIRST;
static void start(void) { cuInit(0); open_device(); }
#define GET(prefix, a) \
    request_by(prefix##ioctl, DEVICE, *(a) = __atomic_fetch_add(&objects, 1, __ATOMIC_RELAXED), CLASS_MEMORY, 2 << 20)
#define GIVE(prefix, a) release_by(prefix##ioctl, a)
#elif !defined MALLOC
int cuMemAlloc_v2(address *, size_t), plain_cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address), plain_cuMemFree_v2(address);
#define GET(prefix, a) prefix##cuMemAlloc_v2(a, 512)
#define GIVE(prefix, a) prefix##cuMemFree_v2(a)
static void start(void) { cuInit(0); }
#endif

enum { ROUNDS = 20000, REPEATS = 15, CHUNK = 250, KEPT = 64, MOST = 256, CHUNKS = REPEATS * ROUNDS / CHUNK, WAYS = 3 };

typedef struct {
    double allocation[CHUNKS], release[CHUNKS], pair[CHUNKS], alone[CHUNKS]; /* nanoseconds of one */
    double cpu;
} Figures;

typedef struct {
    pthread_t thread;
    int number;
    address blocks[ROUNDS];
    Figures of[WAYS];
    volatile int sink;
} Worker;

static Worker *workers[MOST];
static int frames, threads;
static pthread_barrier_t together;

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* The loops of a way, with its calls in line. */
#define LOOPS(way, get, give)                                                                          \
    __attribute__((noinline)) static void way##_pairs(Worker *self, double *pair) {                    \
        for (int i = 0; i < KEPT; i++) get(&self->blocks[i]);                                          \
        pthread_barrier_wait(&together);                                                               \
        for (int done = 0; pair && done < ROUNDS; done += CHUNK) {                                     \
            double begin = now(CLOCK_MONOTONIC);                                                       \
            for (int i = done; i < done + CHUNK; i++) {                                                \
                give(self->blocks[i % KEPT]);                                                          \
                get(&self->blocks[i % KEPT]);                                                          \
            }                                                                                          \
            pair[done / CHUNK] = (now(CLOCK_MONOTONIC) - begin) / CHUNK;                               \
        }                                                                                              \
        pthread_barrier_wait(&together);                                                               \
        for (int i = 0; i < KEPT; i++) give(self->blocks[i]);                                          \
    }                                                                                                  \
    __attribute__((noinline)) static void way##_loops(Worker *self, Figures *of, int first) {          \
        pthread_barrier_wait(&together);                                                               \
        double cpu = now(CLOCK_THREAD_CPUTIME_ID);                                                     \
        for (int done = 0; done < ROUNDS; done += CHUNK) {                                             \
            double begin = now(CLOCK_MONOTONIC);                                                       \
            for (int i = done; i < done + CHUNK; i++) get(&self->blocks[i]);                           \
            of->allocation[first + done / CHUNK] = (now(CLOCK_MONOTONIC) - begin) / CHUNK;             \
        }                                                                                              \
        for (int done = 0; done < ROUNDS; done += CHUNK) {                                             \
            double begin = now(CLOCK_MONOTONIC);                                                       \
            for (int i = done; i < done + CHUNK; i++) give(self->blocks[i]);                           \
            of->release[first + done / CHUNK] = (now(CLOCK_MONOTONIC) - begin) / CHUNK;                \
        }                                                                                              \
        of->cpu += (now(CLOCK_THREAD_CPUTIME_ID) - cpu) / ROUNDS / REPEATS;                            \
        way##_pairs(self, &of->pair[first]);                                                           \
        way##_pairs(self, self->number == 0 ? &of->alone[first] : NULL);                               \
    }

#ifdef MALLOC
static void start(void) {}
#define GET_MALLOC(a) *(a) = (address)malloc(512)
#define GIVE_MALLOC(a) free((void *)(a))
LOOPS(bare, GET_MALLOC, GIVE_MALLOC)
#else
#define GET_BARE(a) GET(plain_, a)
#define GIVE_BARE(a) GIVE(plain_, a)
#define GET_RECORDED(a) GET(, a)
#define GIVE_RECORDED(a) GIVE(, a)
LOOPS(bare, GET_BARE, GIVE_BARE)
LOOPS(recorded, GET_RECORDED, GIVE_RECORDED)

static __thread struct { uint64_t word, others[15]; } __attribute__((aligned(128))) own;
__attribute__((noinline)) static void add(address *a) { *a = 0; for (int i = 0; i < 10; i++) __atomic_fetch_add(&own.word, 1, __ATOMIC_SEQ_CST); }
#define GIVE_CONTROL(a) add(&(a))
LOOPS(control, add, GIVE_CONTROL)
#endif

static const struct {
    const char *name;
    void (*loops)(Worker *, Figures *, int first);
} ways[] = {
    {"bare", bare_loops},
#ifndef MALLOC
    {"recorded", recorded_loops},
    {"control", control_loops},
#endif
};
enum { HERE = sizeof ways / sizeof *ways };

__attribute__((noinline)) static void deep(Worker *self, int left, int repeat) {
    if (left > 0) {
        deep(self, left - 1, repeat);
        self->sink++; /* no tail call */
        return;
    }
    /* Every other turn in the opposite order. */
    for (int i = 0; i < HERE; i++) {
        int way = repeat % 2 ? i : HERE - 1 - i;
        ways[way].loops(self, &self->of[way], repeat * (ROUNDS / CHUNK));
    }
}

/* The loops are one frame; below `deep` are this function and those that start a thread or the program. */
static void *work(void *self) {
    for (int repeat = 0; repeat < REPEATS; repeat++) deep(self, frames - 5, repeat);
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
    if (frames < 5 || threads < 1 || threads > MOST) {
        fprintf(stderr, "usage: %s FRAMES [THREADS]: from 5 frames, from 1 to %d threads\n", arguments[0], MOST);
        return 2;
    }
    start();
    pthread_barrier_init(&together, NULL, threads);
    for (int i = 0; i < threads; i++) {
        workers[i] = calloc(1, sizeof(Worker));
        workers[i]->number = i;
    }
    /* One thread runs on the main thread, so that it is a program without threads. */
    if (threads == 1) work(workers[0]);
    for (int i = 0; threads > 1 && i < threads; i++) pthread_create(&workers[i]->thread, NULL, work, workers[i]);
    for (int i = 0; threads > 1 && i < threads; i++) pthread_join(workers[i]->thread, NULL);

    for (int way = 0; way < HERE; way++) {
        double allocation = 0, release = 0, rate = 0, cpu = 0;
        for (int i = 0; i < threads; i++) {
            Figures *of = &workers[i]->of[way];
            allocation += median(of->allocation) / threads;
            release += median(of->release) / threads;
            cpu += of->cpu / threads;
            rate += 1e9 / median(of->pair);
        }
        printf("WAY %s %.1f %.1f %.0f %.0f %.1f\n", ways[way].name, allocation, release, rate, 1e9 / median(workers[0]->of[way].alone), cpu);
    }
    return 0;
}
