/* Ways in which a process ends, and CUDA calls that come late. */
#include "victim.h"
#include <signal.h>

static void returns(void) {
    start_cuda();
    leak(100);
}

static void exits(void) {
    start_cuda();
    leak(100);
    exit(7);
}

static void leaves_at_once(void) {
    start_cuda();
    leak(100);
    _exit(7);
}

static void quick(void) {
    start_cuda();
    leak(100);
    quick_exit(7);
}

static void aborts(void) {
    start_cuda();
    leak(100);
    abort();
}

static void crashes(void) {
    start_cuda();
    leak(100);
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

static void terminated(void) {
    start_cuda();
    leak(100);
    raise(SIGTERM);
}

/* Prints each allocation after it was made, then waits to be killed. */
static void acknowledges(void) {
    start_cuda();
    for (int i = 0; i < 1000; i++) {
        leak(1000 + i);
        char line[32];
        int length = snprintf(line, sizeof line, "%d\n", 1000 + i);
        REQUIRE(write(1, line, length) == length);
    }
    for (;;) pause();
}

/* Allocates without end and without output, for readers of a changing recording. */
static void restless(void) {
    start_cuda();
    leak(12345);
    REQUIRE(write(1, "ready\n", 6) == 6);
    for (;;) OK(cuMemFree_v2(leak(64)));
}

/* Waits for its stdin to close, so that its recording can be read meanwhile. */
static void waits(void) {
    char byte;
    start_cuda();
    leak(4096);
    REQUIRE(write(1, "ready\n", 6) == 6);
    while (read(0, &byte, 1) > 0) {}
}

/* As waits, after a request for more than there is. */
static void waits_without_memory(void) {
    CUdeviceptr address;
    start_cuda();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, 1ull << 50));
    waits();
}

/* A static object frees its memory after main. */
static CUdeviceptr kept_until_the_end;

__attribute__((destructor)) static void static_destructor(void) {
    if (kept_until_the_end) printf("destructor: %d\n", cuMemFree_v2(kept_until_the_end));
}

static void frees_in_destructor(void) {
    start_cuda();
    kept_until_the_end = leak(100);
    leak(101);
}

static void frees_at_exit(void) { printf("atexit: %d\n", cuMemFree_v2(kept_until_the_end)); kept_until_the_end = 0; }

static void frees_in_atexit(void) {
    start_cuda();
    kept_until_the_end = leak(100);
    REQUIRE(!atexit(frees_at_exit));
}

static void allocates_at_exit(void) { leak(111); }

static void allocates_in_atexit(void) {
    start_cuda();
    REQUIRE(!atexit(allocates_at_exit));
}

MAIN(BEHAVIOUR(returns), BEHAVIOUR(exits), BEHAVIOUR(leaves_at_once), BEHAVIOUR(quick), BEHAVIOUR(aborts),
     BEHAVIOUR(crashes), BEHAVIOUR(terminated), BEHAVIOUR(acknowledges), BEHAVIOUR(restless), BEHAVIOUR(waits), BEHAVIOUR(waits_without_memory),
     BEHAVIOUR(frees_in_destructor), BEHAVIOUR(frees_in_atexit), BEHAVIOUR(allocates_in_atexit))
