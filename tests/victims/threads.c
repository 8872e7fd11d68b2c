/* Threads: created and finished, many at once, named, and allocating from deep stacks. */
#include "victim.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static CUcontext context;

static void *one_leak(void *bytes) {
    OK(cuCtxSetCurrent(context));
    leak((size_t)bytes);
    return NULL;
}

/* 1,000 threads in batches of 50; each leaks 8 bytes and ends. */
static void created_and_gone(void) {
    context = start_cuda();
    for (int batch = 0; batch < 20; batch++) {
        pthread_t threads[50];
        for (int i = 0; i < 50; i++) REQUIRE(!pthread_create(&threads[i], NULL, one_leak, (void *)8));
        for (int i = 0; i < 50; i++) REQUIRE(!pthread_join(threads[i], NULL));
    }
}

static void *named_leak(void *nothing) {
    (void)nothing;
    OK(cuCtxSetCurrent(context));
    REQUIRE(!pthread_setname_np(pthread_self(), "loader-7"));
    leak(70);
    printf("tid %ld\n", (long)syscall(SYS_gettid));
    return NULL;
}

static void named(void) {
    context = start_cuda();
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, named_leak, NULL));
    REQUIRE(!pthread_join(thread, NULL));
    leak(71);
    printf("main %ld\n", (long)getpid());
}

enum { WORKERS = 8, ROUNDS = 5000, KEPT = 100 };

/* Frees what the previous worker allocated, so that every address changes threads. */
static CUdeviceptr *passed[WORKERS];
static pthread_barrier_t barrier;

static void *work(void *number) {
    int self = (int)(intptr_t)number;
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < ROUNDS; i++) passed[self][i] = leak(64);
    pthread_barrier_wait(&barrier);
    for (int i = KEPT; i < ROUNDS; i++) OK(cuMemFree_v2(passed[(self + 1) % WORKERS][i]));
    return NULL;
}

/* 8 threads at once: 40,000 allocations, 800 of them live at the end. */
static void at_once(void) {
    context = start_cuda();
    pthread_t threads[WORKERS];
    pthread_barrier_init(&barrier, NULL, WORKERS);
    for (int i = 0; i < WORKERS; i++) REQUIRE((passed[i] = calloc(ROUNDS, sizeof(CUdeviceptr))));
    for (int i = 0; i < WORKERS; i++) REQUIRE(!pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i));
    for (int i = 0; i < WORKERS; i++) REQUIRE(!pthread_join(threads[i], NULL));
}

/* More threads than shards, all alive at once, each allocating and freeing in a tight loop. A filter hides from the
 * recorder which of them are alive. */
enum { CROWD = 120, CROWD_ROUNDS = 3000, AT_ONCE = 8 };

static void refuse_tgkill(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    REQUIRE(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    REQUIRE(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
    REQUIRE(syscall(SYS_tgkill, getpid(), getpid(), 0) == -1 && errno == EPERM);
}

static void *crowded(void *nothing) {
    CUdeviceptr blocks[AT_ONCE];
    OK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < CROWD_ROUNDS; round++) {
        for (int i = 0; i < AT_ONCE; i++) blocks[i] = leak(16);
        for (int i = 0; i < AT_ONCE; i++) OK(cuMemFree_v2(blocks[i]));
    }
    pthread_barrier_wait(&barrier);
    return nothing;
}

static void without_tgkill(void) {
    context = start_cuda();
    refuse_tgkill();
    pthread_t threads[CROWD];
    pthread_barrier_init(&barrier, NULL, CROWD);
    for (int i = 0; i < CROWD; i++) REQUIRE(!pthread_create(&threads[i], NULL, crowded, NULL));
    for (int i = 0; i < CROWD; i++) REQUIRE(!pthread_join(threads[i], NULL));
}

/* A thread that ends by pthread_exit during its work, one that is cancelled, and a key destructor that frees. */
static pthread_key_t key;

static void give_back(void *address) { OK(cuMemFree_v2((CUdeviceptr)(uintptr_t)address)); }

static void *frees_when_gone(void *nothing) {
    (void)nothing;
    OK(cuCtxSetCurrent(context));
    pthread_setspecific(key, (void *)(uintptr_t)leak(512));
    pthread_exit(NULL);
}

static void key_destructor(void) {
    context = start_cuda();
    REQUIRE(!pthread_key_create(&key, give_back));
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        REQUIRE(!pthread_create(&thread, NULL, frees_when_gone, NULL));
        REQUIRE(!pthread_join(thread, NULL));
    }
}

/* A small stack, as a runtime with many threads would choose. */
static void small_stack(void) {
    context = start_cuda();
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    REQUIRE(!pthread_attr_setstacksize(&attributes, stack_size(32 << 10)));
    REQUIRE(!pthread_create(&thread, &attributes, one_leak, (void *)9));
    REQUIRE(!pthread_join(thread, NULL));
}

static NOINLINE void deep(int frames) {
    if (frames) deep(frames - 1);
    else leak(77);
    STAY();
}

/* deep <frames> */
static void from_deep(void) {
    start_cuda();
    deep(atoi(arguments[0]));
}

MAIN(BEHAVIOUR(created_and_gone), BEHAVIOUR(named), BEHAVIOUR(at_once), BEHAVIOUR(without_tgkill),
     BEHAVIOUR(key_destructor), BEHAVIOUR(small_stack), BEHAVIOUR(from_deep))
