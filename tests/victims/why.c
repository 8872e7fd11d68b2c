/* Memory that native code holds (1000 bytes: a global; 2000: a static local variable) or has lost (3000) when main returns. */
#include "victim.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static CUdeviceptr global;

enum { PLACES = 64, THREADS = 2 };
static CUdeviceptr places[PLACES];
static pthread_t threads[THREADS];
static int started, over;
static CUcontext context;

/* As the destructor of a C++ global: registered before main, so it runs after handlers that were registered later. */
static void destroy_global(void) {
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    /* The driver may have shut down before. */
    if (global) cuMemFree_v2(global);
    puts("destroyed");
}

__attribute__((constructor)) static void construct_global(void) {
    atexit(destroy_global);
}

static NOINLINE void hold(void) {
    static volatile CUdeviceptr local;
    global = leak(1000);
    local = leak(2000);
    STAY();
}

static NOINLINE void all_of_them(void) {
    start_cuda();
    hold();
    leak(3000);
    STAY();
}

/* Waits until its input ends: meanwhile the claim prepares something. */
static void wait_for_input(void) {
    printf("%d\n", getpid());
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
}

static void returns(void) {
    all_of_them();
}

static void asks_before(void) {
    all_of_them();
    wait_for_input();
}

static void notices(int number) {
    (void)number;
    write(1, "noticed\n", 8);
}

static void handles_signals(void) {
    signal(SIGUSR1, notices);
    asks_before();
}

/* The child shares all memory with its parent, and leaves by _exit. */
static void vforks(void) {
    all_of_them();
    int status = 1;
    pid_t child = vfork();
    if (child == 0) _exit(5);
    REQUIRE(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5);
}

/* Replaces half of the blocks of 5000 bytes all the time. Each is held by a place, or by the thread. */
static void *replace(void *nothing) {
    OK(cuCtxSetCurrent(context));
    for (unsigned i = 0; !__atomic_load_n(&over, __ATOMIC_RELAXED); i++) {
        CUdeviceptr *place = &places[PLACES / 2 + i % (PLACES / 2)];
        CUdeviceptr before = __atomic_exchange_n(place, leak(5000), __ATOMIC_RELAXED);
        if (before) OK(cuMemFree_v2(before));
    }
    return nothing;
}

static void start_threads(void) {
    context = start_cuda();
    for (int i = 0; i < PLACES / 2; i++) places[i] = leak(5000);
    for (; started < THREADS; started++) REQUIRE(!pthread_create(&threads[started], NULL, replace, NULL));
    for (int i = 0; i < PLACES; i++) {
        while (!__atomic_load_n(&places[i], __ATOMIC_RELAXED)) usleep(100);
    }
}

/* main returns meanwhile. */
static void replaces(void) {
    start_threads();
}

static void replaces_until_input_ends(void) {
    start_threads();
    printf("READY %d\n", getpid());
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0 && byte != '\n') {}
}

static void runs_out_of_memory(void) {
    all_of_them();
    CUdeviceptr address = 0;
    errno = 77;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, (size_t)1 << 60));
    REQUIRE(errno == 77);
    OK(cuMemFree_v2(global));
    global = 0;
}

/* Functions that return leave pointers in the stack, where those that wait later may have gaps. */
static NOINLINE void clear_stack(void) {
    volatile char gap[64 << 10];
    memset((char *)gap, 0, sizeof gap);
    STAY();
}

static void leaves_at_once(void) {
    all_of_them();
    clear_stack();
    _exit(0);
}

static void leaves_by_c99(void) {
    all_of_them();
    clear_stack();
    _Exit(0);
}

static void leaves_quickly(void) {
    all_of_them();
    clear_stack();
    quick_exit(0);
}

static void aborts(void) {
    all_of_them();
    abort();
}

static void becomes_another(void) {
    all_of_them();
    execl("/bin/true", "true", (char *)0);
}

static pthread_t first;

static void *outlives_main(void *unused) {
    (void)unused;
    pthread_join(first, NULL);
    return NULL;
}

/* The last thread to end ends the process. */
static void ends_in_another_thread(void) {
    all_of_them();
    first = pthread_self();
    pthread_t last;
    REQUIRE(pthread_create(&last, NULL, outlives_main, NULL) == 0);
    pthread_exit(NULL);
}

static void closes_descriptors(void) {
    all_of_them();
    for (int number = 0; number < 4096; number++) close(number);
    clear_stack();
}

/* All of them are short-lived, and wait at the same time. */
static void has_children(void) {
    pid_t children[12];
    for (int nth = 0; nth < 12; nth++) {
        children[nth] = fork();
        if (children[nth] == 0) {
            all_of_them();
            exit(0);
        }
    }
    for (int nth = 0; nth < 12; nth++) {
        int status = 1;
        REQUIRE(waitpid(children[nth], &status, 0) == children[nth] && status == 0);
    }
}

/* Only a local variable of a function that does not return has the address. */
static NOINLINE void holds_and_exits(void) {
    volatile CUdeviceptr local = leak(4000);
    if (local) exit(0);
    STAY();
}

/* Each child is copied while it begins to wait. */
static void children_hold_by_stacks(void) {
    pid_t children[12];
    for (int nth = 0; nth < 12; nth++) {
        children[nth] = fork();
        if (children[nth] == 0) {
            start_cuda();
            holds_and_exits();
        }
    }
    for (int nth = 0; nth < 12; nth++) REQUIRE(waitpid(children[nth], NULL, 0) == children[nth]);
}

MAIN(BEHAVIOUR(children_hold_by_stacks), BEHAVIOUR(leaves_at_once), BEHAVIOUR(leaves_by_c99), BEHAVIOUR(leaves_quickly), BEHAVIOUR(aborts),
     BEHAVIOUR(becomes_another), BEHAVIOUR(ends_in_another_thread), BEHAVIOUR(closes_descriptors), BEHAVIOUR(has_children),
     BEHAVIOUR(returns), BEHAVIOUR(asks_before), BEHAVIOUR(handles_signals), BEHAVIOUR(vforks),
     BEHAVIOUR(runs_out_of_memory), BEHAVIOUR(replaces), BEHAVIOUR(replaces_until_input_ends))
