/* A program whose tensors come from PyTorch's allocator, or from its stand-in: libc10 and libc10_cuda are loaded RTLD_LOCAL,
 * as Python loads extension modules. Arguments: behaviour, then libc10_cuda and libc10 (one or two pairs). */
#include "victim.h"
#include "../../shim/include/culeak.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

typedef struct block block;
struct torch {
    block *(*malloc)(size_t);
    void (*free)(block *), (*unknown)(void), (*totals)(void), (*other)(void), (*say)(void), (*cpu)(int64_t), (*set)(int, const char *);
    CUdeviceptr (*address)(block *);
    size_t (*live)(void), (*peak)(void), (*reserved)(void), *lie;
};

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) printf("%s\n", dlerror());
    REQUIRE(found);
    return found;
}

static void *load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) printf("%s\n", dlerror());
    REQUIRE(library);
    return library;
}

static struct torch load_torch(int pair) {
    void *cuda = load(arguments[pair * 2]), *c10 = load(arguments[pair * 2 + 1]);
    return (struct torch){
        find(cuda, "stand_in_malloc"), find(cuda, "stand_in_free"), find(cuda, "stand_in_free_of_unknown"),
        find(cuda, "stand_in_report_totals"), find(cuda, "stand_in_other_device"), find(c10, "print_profiler_calls"), find(c10, "report_cpu_memory"), find(c10, "set_settings"),
        find(cuda, "stand_in_address"), find(cuda, "stand_in_live"), find(cuda, "stand_in_peak"), find(cuda, "stand_in_reserved"), find(cuda, "lie"),
    };
}

static NOINLINE block *training_step(struct torch *torch, size_t bytes) {
    block *made = torch->malloc(bytes);
    STAY();
    return made;
}

/* Three tensors are live, one is freed, and one is freed and its block reused. */
static void leaks(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    training_step(&torch, 1000);
    block *gone = training_step(&torch, 5000);
    block *again = training_step(&torch, 2048);
    torch.free(again);
    training_step(&torch, 2048);
    training_step(&torch, 100000);
    torch.free(gone);
    torch.other();
    torch.cpu(64);
    torch.say();
    printf("live %zu reserved %zu\n", torch.live(), torch.reserved());
}

/* The allocator fails, after the driver has failed. */
static void runs_out(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    training_step(&torch, 1000);
    REQUIRE(!training_step(&torch, 1ull << 50));
    REQUIRE(!training_step(&torch, 1ull << 50));
    torch.say();
}

/* The allocator's total and the recorder's differ once, and a block is freed whose allocation was never reported. */
static void lies(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    training_step(&torch, 512);
    *torch.lie = 100;
    training_step(&torch, 512);
    training_step(&torch, 512);
    *torch.lie = 0;
    torch.unknown();
    torch.totals();
}

static void *work(void *argument) {
    struct torch *torch = argument;
    for (int round = 0; round < 5000; round++) {
        block *first = torch->malloc(700), *second = torch->malloc(1500);
        torch->free(first);
        torch->free(second);
    }
    torch->malloc(512);
    return NULL;
}

/* 8 threads, each with 20,000 events and one tensor that stays live. */
static void threads(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    training_step(&torch, 512); /* allocates the segment: the threads have no context */
    pthread_t all[8];
    for (int i = 0; i < 8; i++) REQUIRE(!pthread_create(&all[i], NULL, work, &torch));
    for (int i = 0; i < 8; i++) REQUIRE(!pthread_join(all[i], NULL));
}

static void *grow_and_shrink(void *argument) {
    struct torch *torch = argument;
    block *held[64] = {0};
    unsigned random = (unsigned)(uintptr_t)held;
    for (int round = 0; round < 20000; round++) {
        random = random * 1664525 + 1013904223;
        block **one = &held[random >> 26];
        if (*one) torch->free(*one), *one = NULL;
        else *one = training_step(torch, (random >> 16) % 64 * 512 + 1);
    }
    for (int i = 0; i < 64; i++)
        if (i % 8 && held[i]) torch->free(held[i]);
    return NULL;
}

/* Threads that hold different amounts all the time; what the allocator itself has counted. */
static void peaks(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    training_step(&torch, 512);
    pthread_t all[4];
    for (int i = 0; i < 4; i++) REQUIRE(!pthread_create(&all[i], NULL, grow_and_shrink, &torch));
    for (int i = 0; i < 4; i++) REQUIRE(!pthread_join(all[i], NULL));
    printf("%zu %zu\n", torch.peak(), torch.live());
}

/* Killed while 1,000 tensors are live. */
static void dies(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    for (int i = 0; i < 1000; i++) {
        training_step(&torch, 512);
        torch.free(training_step(&torch, 1024));
    }
    raise(SIGKILL);
}

/* Two copies of PyTorch in one process. */
static void two_copies(void) {
    start_cuda();
    struct torch one = load_torch(0), two = load_torch(1);
    training_step(&one, 512);
    training_step(&two, 512);
    training_step(&two, 512);
    one.say();
    two.say();
}

/* A forked child, as a DataLoader's worker, frees what it inherited. */
static void forks(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    block *inherited = training_step(&torch, 512);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        torch.free(inherited);
        torch.cpu(64);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
    torch.say();
}

/* A forked child frees what it inherited, and goes on with tensors of its own; so does the parent. */
static void forks_and_goes_on(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    block *inherited = training_step(&torch, 512);
    training_step(&torch, 1024);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        for (int i = 0; i < 3; i++) training_step(&torch, 2048);
        torch.free(inherited);
        exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
    torch.free(inherited);
    training_step(&torch, 4096);
    torch.free(training_step(&torch, 8192));
}

/* Loaded, and used for CPU tensors alone. */
static void cpu_only(void) {
    struct torch torch = load_torch(0);
    torch.cpu(4096);
    torch.cpu(-4096);
    torch.say();
}

/* Unloaded and loaded again: the function is at another address. */
static void reloaded(void) {
    start_cuda();
    for (int round = 0; round < 3; round++) {
        void *cuda = load(arguments[0]), *c10 = load(arguments[1]);
        struct torch torch = {.malloc = find(cuda, "stand_in_malloc"), .say = find(c10, "print_profiler_calls")};
        training_step(&torch, 512);
        torch.say();
        fflush(stdout);
        REQUIRE(!dlclose(cuda) && !dlclose(c10));
    }
}

/* Each tensor is freed before the next one, which is a little larger, is allocated: no segment serves two of them. Then a small one
 * stays in a large segment's place. */
static void grows(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    for (size_t round = 0; round < 20; round++) torch.free(training_step(&torch, (40 + 2 * round) << 20));
    culeak_mark("grown");
    training_step(&torch, 1000);
}

/* As `grows`, after the program has made settings, as each version of PyTorch takes them; the last ones while it runs. */
static void sets(void) {
    struct torch torch = load_torch(0);
    torch.set(6, "max_split_size_mb:64");
    torch.set(9, "max_split_size_mb:128,expandable_segments:False");
    start_cuda();
    for (size_t round = 0; round < 20; round++) torch.free(training_step(&torch, (40 + 2 * round) << 20));
    torch.set(12, "roundup_power2_divisions:4");
    training_step(&torch, 1000);
}

/* A graph is captured when the allocator takes its second segment. */
static void captures(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    block *before = training_step(&torch, 40 << 20);
    CUstream stream;
    CUgraph graph;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    block *captured = training_step(&torch, 60 << 20);
    OK(cuStreamEndCapture(stream, &graph));
    torch.free(before);
    torch.free(captured);
    culeak_mark("captured");
    training_step(&torch, 1000);
}

/* A segment of 3 MiB, as the allocator of PyTorch takes none. */
static void odd_segment(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    training_step(&torch, 3 << 20);
}

/* A test of a harness in which PyTorch allocates a segment, and one in which it does not. */
static void intervals(void) {
    start_cuda();
    struct torch torch = load_torch(0);
    for (int test = 0; test < 2; test++) {
        unsigned number = culeak_interval_begin("test", 0);
        block *tensor = training_step(&torch, 4096);
        training_step(&torch, 512);
        torch.free(tensor);
        struct culeak_interval all = {0};
        printf("read %d: ", culeak_interval_read(number, -1, &all));
        printf("left %llu in %llu, needed %llu, holds %llu\n", all.left_bytes, all.left_count, all.peak_bytes, all.held_bytes);
    }
}

MAIN(BEHAVIOUR(leaks), BEHAVIOUR(runs_out), BEHAVIOUR(lies), BEHAVIOUR(threads), BEHAVIOUR(peaks), BEHAVIOUR(dies), BEHAVIOUR(two_copies), BEHAVIOUR(forks), BEHAVIOUR(forks_and_goes_on), BEHAVIOUR(cpu_only), BEHAVIOUR(reloaded), BEHAVIOUR(intervals), BEHAVIOUR(grows), BEHAVIOUR(sets), BEHAVIOUR(captures), BEHAVIOUR(odd_segment))
