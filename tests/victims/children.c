/* fork, vfork and exec, before and after CUDA was started. */
#include "victim.h"
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static void wait_for(pid_t child) {
    int status;
    REQUIRE(child > 0);
    REQUIRE(waitpid(child, &status, 0) == child);
    if (status) printf("child status %x\n", status);
}

/* The child starts CUDA by itself, so its leak is its own. */
static void fork_before(void) {
    pid_t child = fork();
    if (!child) {
        start_cuda();
        leak(200);
        exit(0);
    }
    wait_for(child);
    start_cuda();
    leak(100);
}

/* The child inherits 100 bytes that it did not allocate, and does not use CUDA. */
static void fork_after(void) {
    start_cuda();
    leak(100);
    pid_t child = fork();
    if (!child) exit(0);
    wait_for(child);
    leak(101);
}

/* The child allocates although CUDA forbids it: nothing may crash, and the parent's records stay the parent's. */
static void fork_after_and_use(void) {
    start_cuda();
    CUdeviceptr inherited = leak(100);
    pid_t child = fork();
    if (!child) {
        CUdeviceptr address;
        if (cuMemAlloc_v2(&address, 200) == CUDA_SUCCESS) printf("child has memory\n");
        cuMemFree_v2(inherited);
        exit(0);
    }
    wait_for(child);
    OK(cuMemFree_v2(leak(300)));
}

/* 50 children forked while 4 threads allocate. */
#include <pthread.h>
static volatile int stop;
static CUcontext context;
static void *allocate(void *nothing) {
    (void)nothing;
    OK(cuCtxSetCurrent(context));
    while (!stop) OK(cuMemFree_v2(leak(64)));
    return NULL;
}
static void fork_among_threads(void) {
    context = start_cuda();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) REQUIRE(!pthread_create(&threads[i], NULL, allocate, NULL));
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (!child) _exit(0);
        wait_for(child);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) REQUIRE(!pthread_join(threads[i], NULL));
    leak(50);
}

static void vfork_exec(void) {
    start_cuda();
    leak(100);
    for (int i = 0; i < 20; i++) {
        pid_t child = vfork();
        if (!child) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(9);
        }
        wait_for(child);
    }
    leak(101);
}

static void vfork_and_leave(void) {
    start_cuda();
    leak(100);
    pid_t child = vfork();
    if (!child) _exit(0);
    wait_for(child);
    leak(101);
}

static void spawned(void) {
    start_cuda();
    leak(100);
    pid_t child;
    char *command[] = {"children", "small", NULL};
    REQUIRE(!posix_spawn(&child, "/proc/self/exe", NULL, NULL, command, environ));
    wait_for(child);
}

static void small(void) {
    start_cuda();
    leak(7);
}

/* exec: the same process, but another program, with a new recording. */
static void exec_self(void) {
    start_cuda();
    leak(100);
    fflush(stdout);
    execl("/proc/self/exe", "children", "small", (char *)NULL);
}

/* The other program runs until its stdin closes. */
static void exec_and_wait(void) {
    char byte;
    if (arguments[0]) {
        REQUIRE(write(1, "ready\n", 6) == 6);
        while (read(0, &byte, 1) > 0) {}
        return;
    }
    start_cuda();
    leak(100);
    execl("/proc/self/exe", "children", "exec_and_wait", "second", (char *)NULL);
}

static void exec_other(void) {
    start_cuda();
    leak(100);
    execl("/bin/echo", "echo", "another program", (char *)NULL);
}

/* 1,000 short-lived children of a process that uses CUDA; every hundredth uses CUDA itself. */
static void thousand(void) {
    start_cuda();
    leak(100);
    for (int i = 0; i < 1000; i++) {
        char *idle[] = {"true", NULL}, *busy[] = {"children", "small", NULL};
        pid_t child;
        if (i % 100) REQUIRE(!posix_spawn(&child, "/bin/true", NULL, NULL, idle, environ));
        else REQUIRE(!posix_spawn(&child, "/proc/self/exe", NULL, NULL, busy, environ));
        wait_for(child);
    }
}

/* 1,000 forked children that do not use CUDA. */
static void thousand_forks(void) {
    start_cuda();
    leak(100);
    for (int i = 0; i < 1000; i++) {
        pid_t child = fork();
        if (!child) _exit(0);
        wait_for(child);
    }
    leak(101);
}

/* A child whose parent has ended before the child allocates. */
static void orphan(void) {
    int ready[2];
    char byte;
    REQUIRE(!pipe(ready));
    pid_t child = fork();
    if (!child) {
        close(ready[1]);
        REQUIRE(read(ready[0], &byte, 1) == 0); /* end of file: the parent has ended */
        start_cuda();
        leak(200);
        _exit(0);
    }
    start_cuda();
    leak(100);
}

MAIN(BEHAVIOUR(fork_before), BEHAVIOUR(fork_after), BEHAVIOUR(fork_after_and_use), BEHAVIOUR(fork_among_threads),
     BEHAVIOUR(vfork_exec), BEHAVIOUR(vfork_and_leave), BEHAVIOUR(spawned), BEHAVIOUR(small), BEHAVIOUR(exec_self), BEHAVIOUR(exec_and_wait),
     BEHAVIOUR(exec_other), BEHAVIOUR(thousand), BEHAVIOUR(thousand_forks), BEHAVIOUR(orphan))
