/* Processes of a job: each allocates the same, and one forgets more. */
#include "victim.h"
#include <pthread.h>
#include <stdatomic.h>

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

/* All memory goes through one function. */
static NOINLINE void helps(size_t bytes) {
    CUdeviceptr memory;
    REQUIRE(!cuMemAlloc_v2(&memory, bytes));
    STAY();
}

static NOINLINE void loads_with_help(void) {
    for (int layer = 0; layer < 4; layer++) helps(256 << 20);
    STAY();
}

static NOINLINE void keeps_with_help(void) {
    helps(30 << 20);
    STAY();
}

static void helped(void) {
    start_cuda();
    loads_with_help();
}

static void helped_leaking(void) {
    helped();
    keeps_with_help();
}

static void refused(void) {
    CUdeviceptr none;
    usual();
    REQUIRE(cuMemAlloc_v2(&none, (size_t)1 << 50));
}

/* The recording starts at a request that fails, before there is a rank. */
static void starts_the_recording(void) {
    CUdeviceptr none;
    REQUIRE(open_driver());
    REQUIRE(cuMemAlloc_v2(&none, 1 << 20));
    REQUIRE(!getenv("RANK"));
}

static void sets_its_rank_late(void) {
    starts_the_recording();
    REQUIRE(!setenv("RANK", "6", 1) && !setenv("WORLD_SIZE", "8", 1) && !setenv("PP_RANK", "1", 1));
    usual();
    REQUIRE(!setenv("TP_RANK", "1", 1)); // after the first context
}

static atomic_int is_done;

static void *changes_the_environment(void *unused) {
    char name[32], value[4096];
    memset(value, 'x', sizeof value - 1);
    value[sizeof value - 1] = 0;
    for (int i = 0; !is_done; i++) {
        snprintf(name, sizeof name, "VARIABLE_%d", i % 1000);
        REQUIRE(!setenv(name, value + i % 4000, 1));
        if (i % 1000 == 999) REQUIRE(!clearenv());
    }
    return unused;
}

/* Another thread changes the environment while the first context is created. */
static void is_disturbed(void) {
    starts_the_recording();
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, changes_the_environment, NULL));
    usleep(1000);
    usual();
    is_done = 1;
    REQUIRE(!pthread_join(thread, NULL));
}

MAIN(BEHAVIOUR(usual), BEHAVIOUR(leaking), BEHAVIOUR(sets_its_rank_late), BEHAVIOUR(is_disturbed),
     BEHAVIOUR(helped), BEHAVIOUR(helped_leaking), BEHAVIOUR(refused))
