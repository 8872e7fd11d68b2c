/* All memory goes through two wrappers, which five functions call. */
#include "victim.h"

static NOINLINE CUdeviceptr checked_malloc(size_t bytes) {
    CUdeviceptr memory;
    OK(cuMemAlloc_v2(&memory, bytes));
    STAY();
    return memory;
}

static NOINLINE CUdeviceptr gpu_alloc(size_t bytes) {
    CUdeviceptr memory = checked_malloc(bytes);
    STAY();
    return memory;
}

#define CALLS(function, bytes) \
    static NOINLINE void function(void) { \
        gpu_alloc(bytes); \
        STAY(); \
    }
CALLS(loads_weights, 64 << 20)
CALLS(makes_cache, 32 << 20)
CALLS(keeps_batch, 8 << 20)
CALLS(keeps_metrics, 1 << 20)
CALLS(plans_graph, 2 << 20)

/* No wrapper by its name: it has a caller for each of its shares. */
static NOINLINE void makes_layer(size_t bytes) {
    gpu_alloc(bytes);
    STAY();
}

static NOINLINE void encodes(size_t bytes) {
    makes_layer(bytes);
    STAY();
}

static NOINLINE void decodes(size_t bytes) {
    makes_layer(bytes);
    STAY();
}

static void usual(void) {
    start_cuda();
    loads_weights();
    makes_cache();
    keeps_batch();
    keeps_metrics();
    plans_graph();
    encodes(4 << 20);
    decodes(4 << 20);
}

static void leaking(void) {
    usual();
    for (int step = 0; step < 4; step++) keeps_batch();
    decodes(16 << 20);
}

/* The wrappers have one caller. */
static void few(void) {
    start_cuda();
    keeps_batch();
}

MAIN(BEHAVIOUR(usual), BEHAVIOUR(leaking), BEHAVIOUR(few))
