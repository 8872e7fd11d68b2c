/* A program whose call sites grow in different ways, step by step. */
#include "victim.h"
#include "../../shim/include/culeak.h"

#define STEPS 24

static NOINLINE CUdeviceptr forgotten(void) {
    CUdeviceptr block = leak(1 << 20);
    STAY();
    return block;
}

static NOINLINE CUdeviceptr cached(void) {
    CUdeviceptr block = leak(2 << 20);
    STAY();
    return block;
}

static NOINLINE CUdeviceptr tidied(void) {
    CUdeviceptr block = leak(3 << 20);
    STAY();
    return block;
}

static NOINLINE CUdeviceptr batch(int step) {
    CUdeviceptr block = leak((size_t)(1 + step % 4) << 20);
    STAY();
    return block;
}

static NOINLINE CUdeviceptr model(void) {
    CUdeviceptr block = leak(64 << 20);
    STAY();
    return block;
}

/* All patterns at once; each step ends with a mark. */
static void steps(void) {
    CUdeviceptr tidy[STEPS];
    start_cuda();
    model();
    for (int step = 0; step < STEPS; step++) {
        char name[32];
        CUdeviceptr now = batch(step);
        forgotten();
        if (step < 6) cached();
        tidy[step] = tidied();
        snprintf(name, sizeof name, "step %d", step);
        culeak_mark(name);
        OK(cuMemFree_v2(now));
    }
    for (int step = 0; step < STEPS; step++) OK(cuMemFree_v2(tidy[step]));
}

/* Grows until its input ends. Prints a line for each block. */
static void on_and_on(void) {
    char byte;
    start_cuda();
    do {
        forgotten();
        putchar('.');
        fflush(stdout);
    } while (read(0, &byte, 1) == 1);
}

MAIN(BEHAVIOUR(steps), BEHAVIOUR(on_and_on))
