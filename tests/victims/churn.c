/* Eight threads swap blocks while a timer's handler allocates, libraries come and go, and children are forked. */
#include "victim.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { THREADS = 8, SWAPS = 100000, PLACES = 512, CHILDREN = 60 };
static CUdeviceptr places[PLACES];
static long allocations, signals;
static volatile int over;
static CUcontext context;

static void on_timer(int signal) {
    (void)signal;
    int before = errno;
    CUdeviceptr address;
    if (cuMemAlloc_v2(&address, 64) == CUDA_SUCCESS) {
        OK(cuMemFree_v2(address));
        __atomic_fetch_add(&signals, 1, __ATOMIC_RELAXED);
    }
    errno = before;
}

static void *swap(void *seed) {
    unsigned random = (unsigned)(size_t)seed * 7919 + 1;
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < SWAPS; i++) {
        random = random * 1664525 + 1013904223;
        CUdeviceptr mine = leak(random % 1000 + 1);
        __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
        CUdeviceptr other = __atomic_exchange_n(&places[(random >> 8) % PLACES], mine, __ATOMIC_RELAXED);
        if (other) OK(cuMemFree_v2(other));
    }
    return NULL;
}

static void *libraries(void *nothing) {
    while (!over) {
        void *library = dlopen(arguments[0], RTLD_NOW);
        REQUIRE(library);
        REQUIRE(!dlclose(library));
        usleep(200);
    }
    return nothing;
}

static void churn(void) {
    context = start_cuda();
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    REQUIRE(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &timer, NULL));
    pthread_t threads[THREADS], loader;
    for (size_t i = 0; i < THREADS; i++) REQUIRE(!pthread_create(&threads[i], NULL, swap, (void *)i));
    REQUIRE(!pthread_create(&loader, NULL, libraries, NULL));
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (!child) {
            leak(99);
            _exit(0);
        }
        int status;
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
        usleep(1000);
    }
    for (int i = 0; i < THREADS; i++) REQUIRE(!pthread_join(threads[i], NULL));
    over = 1;
    REQUIRE(!pthread_join(loader, NULL));
    REQUIRE(!setitimer(ITIMER_REAL, &off, NULL));
    int live = 0;
    for (int i = 0; i < PLACES; i++) live += places[i] != 0;
    printf("allocations %ld live %d\n", allocations + signals, live);
}

MAIN(BEHAVIOUR(churn))
