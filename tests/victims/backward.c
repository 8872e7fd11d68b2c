/* Backward passes: nodes run on a thread of the engine, and their tensors stay. Arguments: behaviour, libc10_cuda, libc10, libtorch_cpu
 * (one or two). */
#include "victim.h"
#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>

static void *(*stand_in)(size_t);
static void (*execute)(uint64_t, void (*)(void *), void *, int);

static void *load(const char *path, const char *name) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) printf("%s\n", dlerror());
    REQUIRE(library);
    void *found = dlsym(library, name);
    REQUIRE(found);
    return found;
}

#define BACKWARD(run, argument, on_caller) (execute(~0ull, run, argument, on_caller))

static void start(void) {
    start_cuda();
    stand_in = load(arguments[0], "stand_in_malloc");
    execute = load(arguments[2], "_ZN5torch8autograd6Engine7executeEv");
}

/* `argument`: the bytes of the tensor. */
void mm_backward(void *argument) __asm__("_ZN5torch8autograd9generated11MmBackward05applyEv");
NOINLINE void mm_backward(void *argument) {
    REQUIRE(stand_in((size_t)argument));
    STAY();
}

static NOINLINE void first_step(void) {
    BACKWARD(mm_backward, (void *)512, 0);
    STAY();
}

static NOINLINE void second_step(void) {
    BACKWARD(mm_backward, (void *)1024, 0);
    STAY();
}

static NOINLINE void on_the_caller(void) {
    BACKWARD(mm_backward, (void *)1536, 1);
    STAY();
}

/* Two lines start passes one after the other, whose tasks have the same address; one pass runs on its caller's thread. */
static void passes(void) {
    start();
    stand_in(4096); /* allocates the segment */
    first_step();
    second_step();
    on_the_caller();
}

static NOINLINE void custom_node(void *argument) {
    BACKWARD(mm_backward, argument, 1);
    STAY();
    mm_backward((void *)1024);
    STAY();
}

static NOINLINE void outer_step(void) {
    BACKWARD(custom_node, (void *)512, 0);
    STAY();
}

/* A node starts a pass, which runs on the node's thread. */
static void reentrant(void) {
    start();
    stand_in(4096);
    outer_step();
}

static pthread_barrier_t barrier;

static void *first_thread(void *nothing) {
    for (int i = 0; i < 200; i++) {
        pthread_barrier_wait(&barrier);
        first_step();
    }
    return nothing;
}

static void *second_thread(void *nothing) {
    for (int i = 0; i < 200; i++) {
        pthread_barrier_wait(&barrier);
        second_step();
    }
    return nothing;
}

/* Two threads wait in the engine at the same time. */
static void threads(void) {
    start();
    stand_in(4096);
    pthread_t first, second;
    REQUIRE(!pthread_barrier_init(&barrier, NULL, 2));
    REQUIRE(!pthread_create(&first, NULL, first_thread, NULL) && !pthread_create(&second, NULL, second_thread, NULL));
    REQUIRE(!pthread_join(first, NULL) && !pthread_join(second, NULL));
}

static jmp_buf out;
static void jumps_out(void *argument) { longjmp(out, (int)(size_t)argument); }

/* 100 passes are left without returning, as an exception leaves them; then one takes place. */
static void left(void) {
    start();
    stand_in(4096);
    for (volatile int i = 0; i < 100; i++)
        if (!setjmp(out)) BACKWARD(jumps_out, (void *)1, 1);
    second_step();
}

static void nothing(void *argument) { (void)argument; }

/* A child's first pass: the parent's loader may have been in use, so the function is searched for without its lock. */
static void forks(void) {
    start();
    stand_in(4096);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        BACKWARD(nothing, NULL, 1);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
    first_step();
}

MAIN(BEHAVIOUR(passes), BEHAVIOUR(reentrant), BEHAVIOUR(threads), BEHAVIOUR(left), BEHAVIOUR(forks))
