/* Pairs of an allocation and a free from many call sites. Prints nanoseconds per pair, and how often the loader's list was
 * walked meanwhile, which `counts_look_ups.c` counts.
 *   tensors LIBC10_CUDA…   blocks of the stand-in for PyTorch; every copy of it has its own call sites
 *   runtime                -DRUNTIME: cudaMalloc and cudaFree from 64 call sites */
#include "victim.h"
#include <time.h>

enum { WARM = 20, CHUNKS = 50, COPIES = 64 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

/* The median of CHUNKS chunks, so that other load on the machine does not count. */
static void measure(void (*round)(void), int pairs, int rounds) {
    unsigned long *look_ups = dlsym(RTLD_DEFAULT, "look_ups");
    double took[CHUNKS];
    unsigned long before = 0;
    /* From the same line: another line would have other stacks, which the recorder meets for the first time. */
    for (int chunk = -WARM; chunk < CHUNKS; chunk++) {
        if (chunk == 0 && look_ups) before = *look_ups;
        double began = now();
        for (int i = 0; i < rounds; i++) round();
        if (chunk >= 0) took[chunk] = (now() - began) / rounds / pairs;
    }
    unsigned long after = look_ups ? *look_ups : 0;
    qsort(took, CHUNKS, sizeof *took, ascending);
    printf("%.0f ns a pair, %lu look-ups\n", took[CHUNKS / 2], after - before);
}

static struct { void *(*allocate)(size_t); void (*give_back)(void *); } copies[COPIES];
static int count;

static void tensor_round(void) {
    for (int i = 0; i < count; i++) copies[i].give_back(copies[i].allocate(512));
}

static void tensors(void) {
    start_cuda();
    for (; arguments[count]; count++) {
        void *library = dlopen(arguments[count], RTLD_NOW | RTLD_LOCAL);
        if (!library) printf("%s\n", dlerror());
        REQUIRE(library && count < COPIES);
        copies[count].allocate = dlsym(library, "stand_in_malloc");
        copies[count].give_back = dlsym(library, "stand_in_free");
        REQUIRE(copies[count].allocate && copies[count].give_back);
    }
    measure(tensor_round, count, 400 / count);
}

#ifdef RUNTIME
extern int cudaMalloc(void **, size_t), cudaFree(void *);

#define SITE(name) \
    static NOINLINE void site_##name(void) { \
        void *address; \
        OK(cudaMalloc(&address, 512)); \
        OK(cudaFree(address)); \
    }
#define EIGHT(of, name) of(name##0) of(name##1) of(name##2) of(name##3) of(name##4) of(name##5) of(name##6) of(name##7)
#define ALL(of) EIGHT(of, 0) EIGHT(of, 1) EIGHT(of, 2) EIGHT(of, 3) EIGHT(of, 4) EIGHT(of, 5) EIGHT(of, 6) EIGHT(of, 7)
#define CALL(name) site_##name();
ALL(SITE)

static void runtime_round(void) { ALL(CALL) }

static void runtime(void) { measure(runtime_round, 64, 4); }

MAIN(BEHAVIOUR(tensors), BEHAVIOUR(runtime))
#else
MAIN(BEHAVIOUR(tensors))
#endif
