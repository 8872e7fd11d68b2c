/* Processes of a job: each allocates the same, and one forgets more. */
#include "victim.h"

static NOINLINE void loads_the_model(void) {
    CUdeviceptr weights;
    for (int layer = 0; layer < 4; layer++) {
        REQUIRE(!cuMemAlloc_v2(&weights, 8 << 20));
    }
}

static NOINLINE void keeps_a_batch(void) {
    CUdeviceptr batch;
    REQUIRE(!cuMemAlloc_v2(&batch, 30 << 20)); // the leak
}

static void usual(void) {
    start_cuda();
    loads_the_model();
}

static void leaking(void) {
    start_cuda();
    loads_the_model();
    keeps_a_batch();
}

MAIN(BEHAVIOUR(usual), BEHAVIOUR(leaking))
