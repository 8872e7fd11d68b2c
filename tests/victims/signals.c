/* Signals that interrupt a hook, and CUDA calls from inside a handler. */
#include "victim.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t interruptions;

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    REQUIRE(!sigaction(signal, &action, NULL));
}

static void every_millisecond(void) {
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    REQUIRE(!setitimer(ITIMER_REAL, &timer, NULL));
}

static void count(int signal) {
    (void)signal;
    interruptions++;
}

/* Allocates and frees until 300 interruptions have occurred. */
static void interrupted(void) {
    start_cuda();
    handle(SIGALRM, count, SA_RESTART);
    every_millisecond();
    while (interruptions < 300) OK(cuMemFree_v2(leak(64)));
    leak(65);
}

/* The handler allocates, mostly while a hook is running, and frees nothing. */
static volatile sig_atomic_t kept;

static void allocate(int signal) {
    (void)signal;
    int before = errno;
    CUdeviceptr address;
    if (kept < 300 && cuMemAlloc_v2(&address, 32) == CUDA_SUCCESS) kept++;
    errno = before;
}

static void allocated_in_handler(void) {
    start_cuda();
    handle(SIGALRM, allocate, SA_RESTART);
    every_millisecond();
    while (kept < 300) OK(cuMemFree_v2(leak(64)));
    struct itimerval off = {{0, 0}, {0, 0}};
    REQUIRE(!setitimer(ITIMER_REAL, &off, NULL));
    printf("kept %d\n", (int)kept);
}

/* The handler runs on its own small stack. */
static void on_alternate_stack(void) {
    static char memory[16384] __attribute__((aligned(16)));
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    start_cuda();
    leak(31);
    REQUIRE(!sigaltstack(&stack, NULL));
    handle(SIGUSR1, allocate, SA_ONSTACK);
    for (int i = 0; i < 10; i++) raise(SIGUSR1);
    printf("kept %d\n", (int)kept);
}

/* The handler leaves by siglongjmp, so an interrupted hook never returns. */
static sigjmp_buf back;

static void jump(int signal) {
    (void)signal;
    interruptions++;
    siglongjmp(back, 1);
}

static void jumps_out(void) {
    start_cuda();
    handle(SIGALRM, jump, 0);
    every_millisecond();
    sigsetjmp(back, 1);
    while (interruptions < 200) leak(16);
    struct itimerval off = {{0, 0}, {0, 0}};
    REQUIRE(!setitimer(ITIMER_REAL, &off, NULL));
    leak(17);
}

/* A thread is cancelled while it allocates. Its own code has a single cancellation point; waiting, opening or writing
 * inside a hook must not add another. */
static CUcontext context;
static volatile int started;

static void *endless(void *nothing) {
    (void)nothing;
    OK(cuCtxSetCurrent(context));
    for (;;) {
        pthread_testcancel();
        started = 1;
        for (int i = 0; i < 5000; i++) leak(16);
        kept++;
    }
}

static void cancelled(void) {
    context = start_cuda();
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        started = 0;
        REQUIRE(!pthread_create(&thread, NULL, endless, NULL));
        while (!started) sched_yield();
        REQUIRE(!pthread_cancel(thread));
        REQUIRE(!pthread_join(thread, NULL));
    }
    /* every round that was begun was finished */
    printf("%s\n", kept >= 20 ? "rounds" : "cut short");
    leak(17);
}

MAIN(BEHAVIOUR(interrupted), BEHAVIOUR(allocated_in_handler), BEHAVIOUR(on_alternate_stack), BEHAVIOUR(jumps_out),
     BEHAVIOUR(cancelled))
