/* Unusual environments, which lack something that the recorder uses. The recorder must not affect the program. */
#include "victim.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static NOINLINE void grow(int left) {
    if (left) grow(left - 1);
    else leak(16);
    STAY();
}

/* 60 call paths, 3,000 blocks: the recording has to grow. Then a mark, if there is a recorder. */
static void grows(void) {
    start_cuda();
    for (int i = 0; i < 3000; i++) grow(i % 60);
    void (*mark)(const char *) = dlsym(RTLD_DEFAULT, "culeak_mark");
    if (mark) mark("grown");
}

/* As daemons and sandboxes do: in one call, without knowing which descriptors are open. */
static void closes_a_range(void) {
    start_cuda();
    leak(100);
    REQUIRE(!syscall(SYS_close_range, 3, ~0u, 0));
    for (int i = 0; i < 3000; i++) grow(i % 60);
}

static CUcontext context;
static pthread_barrier_t together;

static void *work(void *nothing) {
    CUdeviceptr blocks[8];
    OK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&together);
    for (int round = 0; round < 250; round++) {
        for (int i = 0; i < 8; i++) OK(cuMemAlloc_v2(&blocks[i], 64));
        for (int i = 0; i < 8; i++) OK(cuMemFree_v2(blocks[i]));
    }
    pthread_barrier_wait(&together);
    return nothing;
}

/* A sandbox denies signals to threads by number, and reading memory through the kernel. */
static void sandboxed(void) {
#define REFUSE(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(SYS_tgkill),
        REFUSE(SYS_process_vm_readv),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    REQUIRE(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    REQUIRE(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    context = start_cuda();
    /* More threads than there are shards, all alive at once and then all gone, three times. */
    pthread_t threads[70];
    REQUIRE(!pthread_barrier_init(&together, NULL, 70));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 70; i++) REQUIRE(!pthread_create(&threads[i], NULL, work, NULL));
        for (int i = 0; i < 70; i++) REQUIRE(!pthread_join(threads[i], NULL));
    }
    grow(5);
}

/* Its first allocations come from many threads at once, while the recording is created. */
static void *first(void *nothing) {
    CUdeviceptr block;
    pthread_barrier_wait(&together);
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 100; i++) OK(cuMemAlloc_v2(&block, 32));
    return nothing;
}

static void begins_on_many_threads(void) {
    pthread_t threads[8];
    context = start_cuda();
    REQUIRE(!pthread_barrier_init(&together, NULL, 8));
    for (int i = 0; i < 8; i++) REQUIRE(!pthread_create(&threads[i], NULL, first, NULL));
    for (int i = 0; i < 8; i++) REQUIRE(!pthread_join(threads[i], NULL));
}

MAIN(BEHAVIOUR(grows), BEHAVIOUR(closes_a_range), BEHAVIOUR(sandboxed), BEHAVIOUR(begins_on_many_threads))
