/* churn PLUGIN THREADS SWAPS CHILDREN: each thread swaps blocks SWAPS times, while a timer's handler allocates, a library
 * is opened and closed, and children are forked.
 * keep COUNT THREADS: COUNT blocks are live at the end; prints how much memory the process uses for each. */
#include "victim.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { PLACES = 4096, MOST_THREADS = 256 };
static CUdeviceptr places[PLACES];
static long signals, swaps;
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
    for (long i = 0; i < swaps; i++) {
        random = random * 1664525 + 1013904223;
        CUdeviceptr mine = leak(random % 1000 + 1);
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
    long threads_count = atol(arguments[1]), children = atol(arguments[3]);
    swaps = atol(arguments[2]);
    REQUIRE(threads_count > 0 && threads_count <= MOST_THREADS);
    context = start_cuda();
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    REQUIRE(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &timer, NULL));
    pthread_t threads[MOST_THREADS], loader;
    for (long i = 0; i < threads_count; i++) REQUIRE(!pthread_create(&threads[i], NULL, swap, (void *)(size_t)i));
    REQUIRE(!pthread_create(&loader, NULL, libraries, NULL));
    for (long i = 0; i < children; i++) {
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
    for (long i = 0; i < threads_count; i++) REQUIRE(!pthread_join(threads[i], NULL));
    over = 1;
    REQUIRE(!pthread_join(loader, NULL));
    REQUIRE(!setitimer(ITIMER_REAL, &off, NULL));
    int live = 0;
    for (int i = 0; i < PLACES; i++) live += places[i] != 0;
    printf("allocations %ld live %d\n", threads_count * swaps + signals, live);
}

static void *keep_some(void *count) {
    OK(cuCtxSetCurrent(context));
    for (size_t i = 0; i < (size_t)count; i++) leak(i % 1000 + 1);
    return NULL;
}

/* Memory of the process, file pages included, in bytes. */
static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    REQUIRE(file && fscanf(file, "%*d %ld", &pages) == 1 && !fclose(file));
    return pages * sysconf(_SC_PAGESIZE);
}

static void keep(void) {
    long count = atol(arguments[0]), threads_count = atol(arguments[1]);
    REQUIRE(threads_count > 0 && threads_count <= MOST_THREADS && count % threads_count == 0);
    context = start_cuda();
    leak(1);
    long before = resident();
    pthread_t threads[MOST_THREADS];
    for (long i = 0; i < threads_count; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, keep_some, (void *)(size_t)(count / threads_count)));
    for (long i = 0; i < threads_count; i++) REQUIRE(!pthread_join(threads[i], NULL));
    printf("live %ld resident %.1f\n", count + 1, (double)(resident() - before) / (double)count);
}

MAIN(BEHAVIOUR(churn), BEHAVIOUR(keep))
