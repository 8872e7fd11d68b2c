/* Memory that the kernel driver gives to the process: through the fake driver, and by requests of the victim's own. The last
   line is the kernel's own sum of device memory, `KERNEL device host`. */
#include "victim.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

enum { CLIENT = 0x41, DEVICE = 0x80, SUBDEVICE = 0x2080, VIDEO = 0x40, SYSTEM = 0x3e, NO_MEMORY = 0x51 };
#define MIB (1ull << 20)

static int file = -1;
static void (*answer)(int, int);
static void (*meanwhile)(void (*)(void));
static uint64_t (*kernel_bytes)(uint32_t);

static void print_kernel(void) {
    if (kernel_bytes) printf("KERNEL %llu %llu\n", (unsigned long long)kernel_bytes(VIDEO), (unsigned long long)kernel_bytes(SYSTEM));
    fflush(stdout);
}

/* CUDA is started, so that there is a recording. */
static void start(void) {
    start_cuda();
    answer = (void (*)(int, int))dlsym(RTLD_DEFAULT, "fake_kernel_answer");
    kernel_bytes = (uint64_t(*)(uint32_t))dlsym(RTLD_DEFAULT, "fake_kernel_bytes");
    meanwhile = (void (*)(void (*)(void)))dlsym(RTLD_DEFAULT, "fake_kernel_meanwhile");
    REQUIRE(answer && kernel_bytes && meanwhile);
    file = open("/dev/null", O_RDWR);
    REQUIRE(file >= 0);
}

static unsigned long number(unsigned escape, unsigned bytes) { return 3ul << 30 | (unsigned long)bytes << 16 | 'F' << 8 | escape; }

static uint64_t parameters[16];
/* The handle of the next object; 0: the kernel driver chooses it. */
static uint32_t wanted;

/* Handle of a new object; 0 if the request failed. */
static NOINLINE uint32_t take(uint32_t client, uint32_t parent, uint32_t class, uint64_t bytes) {
    uint32_t words[12] = {client, parent, wanted, class};
    wanted = 0;
    uint64_t address = (uint64_t)parameters;
    parameters[0] = class == DEVICE ? bytes : 0;
    parameters[8] = bytes;
    memcpy(words + 4, &address, 8);
    words[10] = 99;
    int result = ioctl(file, number(0x2b, 48), words);
    STAY();
    return result || words[10] ? 0 : words[2];
}

/* The same with the argument of 32 bytes. */
static NOINLINE uint32_t take_small(uint32_t client, uint32_t parent, uint32_t class, uint64_t bytes) {
    uint32_t words[8] = {client, parent, 0, class};
    uint64_t address = (uint64_t)parameters;
    parameters[8] = bytes;
    memcpy(words + 4, &address, 8);
    words[7] = 99;
    int result = ioctl(file, number(0x2b, 32), words);
    STAY();
    return result || words[7] ? 0 : words[2];
}

static NOINLINE int release(uint32_t client, uint32_t object) {
    uint32_t words[4] = {client, 0, object, 99};
    int result = ioctl(file, number(0x29, 16), words);
    STAY();
    return result || words[3];
}

static NOINLINE uint32_t duplicate(uint32_t client, uint32_t parent, uint32_t of_client, uint32_t of) {
    uint32_t words[7] = {client, parent, 0, of_client, of, 0, 99};
    int result = ioctl(file, number(0x34, 28), words);
    STAY();
    return result || words[6] ? 0 : words[2];
}

static uint32_t client, device;

static void own_device(void) {
    start();
    client = take(0, 0, CLIENT, 0);
    device = take(client, client, DEVICE, 1);
    REQUIRE(client && device);
}

/* Through the driver. */

static void context(void) { start(); }

static void everything(void) {
    start();
    CUdeviceptr small[3], large, pooled;
    CUstream stream[4];
    CUmodule module;
    CUgraph graph;
    CUexec exec;
    void *host;
    for (int i = 0; i < 3; i++) small[i] = leak(600 << 10);
    large = leak(5 << 20);
    for (int i = 0; i < 4; i++) OK(cuStreamCreate(&stream[i], 1));
    OK(cuModuleLoadData(&module, ".version 7.0\n"));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuMemAllocAsync(&pooled, 1000, 0));
    OK(cuMemHostAlloc(&host, 10000, 0));
    OK(cuMemFree_v2(small[1]));
    OK(cuMemFree_v2(large));
    OK(cuStreamDestroy_v2(stream[0]));
    OK(cuModuleUnload(module));
}

static void linear(void) {
    start();
    unsigned long long seed = 1;
    static CUdeviceptr live[200];
    for (int i = 0; i < 4000; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        int at = seed >> 33 & 127;
        if (live[at]) {
            OK(cuMemFree_v2(live[at]));
            live[at] = 0;
        } else
            OK(cuMemAlloc_v2(&live[at], 1 + (seed >> 40) % (3 << 20)));
    }
}

static void contexts(void) {
    start();
    for (int i = 0; i < 3; i++) {
        CUcontext other;
        OK(cuCtxCreate_v2(&other, 0, i & 1));
        leak(3 << 20);
        if (i == 1) OK(cuCtxDestroy_v2(other));
    }
}

static void reset(void) {
    start();
    leak(3 << 20);
    if (arguments[0]) {
        /* Physical memory outlives its context. */
        CUphysicalProps properties = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
        CUhandle handle;
        OK(cuMemCreate(&handle, 6 * MIB, &properties, 0));
    }
    OK(cuDevicePrimaryCtxReset_v2(0));
}

/* By requests of the victim's own. */

static void sizes(void) {
    own_device();
    REQUIRE(take(client, device, VIDEO, 1234 * 4096));
    REQUIRE(take_small(client, device, VIDEO, 7 * MIB));
    REQUIRE(take(client, device, SYSTEM, 999));
    uint32_t gone = take(client, device, VIDEO, MIB);
    REQUIRE(!release(client, gone));
}

static void failures(void) {
    own_device();
    uint32_t kept = take(client, device, VIDEO, MIB);
    answer(0, NO_MEMORY);
    REQUIRE(!take(client, device, VIDEO, 2 * MIB));
    answer(-1, 0);
    errno = 0;
    REQUIRE(!take(client, device, VIDEO, 2 * MIB));
    REQUIRE(errno == ENOTTY);
    answer(0, 0x57);
    REQUIRE(release(client, kept));
    answer(-1, 0);
    REQUIRE(release(client, kept));
    answer(0, 0x57);
    REQUIRE(!duplicate(client, device, client, kept));
    REQUIRE(!take(client, 0x12345, VIDEO, MIB));
}

static void parents(void) {
    own_device();
    uint32_t under_subdevice = take(client, device, SUBDEVICE, 0);
    REQUIRE(take(client, under_subdevice, VIDEO, 3 * MIB));
    REQUIRE(take(client, device, VIDEO, MIB));
    uint32_t other = take(client, client, DEVICE, 0);
    REQUIRE(take(client, other, VIDEO, 5 * MIB));
    uint32_t second = take(0, 0, CLIENT, 0), its = take(second, second, DEVICE, 0);
    REQUIRE(take(second, its, VIDEO, 7 * MIB));
    /* Below an object of another class. */
    REQUIRE(take(second, take(second, its, 0x1234, 0), VIDEO, 8 * MIB));
    REQUIRE(!release(client, device));
    REQUIRE(!release(second, second));
}

static void duplicates(void) {
    own_device();
    uint32_t original = take(client, device, VIDEO, 4 * MIB);
    uint32_t second = take(0, 0, CLIENT, 0), its = take(second, second, DEVICE, 1);
    uint32_t copy = duplicate(second, its, client, original);
    uint32_t third = duplicate(second, its, second, copy);
    REQUIRE(copy && third);
    /* Another process's. */
    REQUIRE(duplicate(client, device, 0xc1dfffff, 0x5c000000));
    /* Not memory. */
    REQUIRE(duplicate(client, client, second, its));
    /* The arguments name those that are freed, in this order. */
    for (char **freed = arguments; *freed; freed++) {
        if (!strcmp(*freed, "original")) REQUIRE(!release(client, original));
        if (!strcmp(*freed, "copy")) REQUIRE(!release(second, copy));
        if (!strcmp(*freed, "third")) REQUIRE(!release(second, third));
        /* With what is below it: the original. */
        if (!strcmp(*freed, "client")) REQUIRE(!release(client, client));
    }
}

/* A device of the same name, which another thread makes before the free of the first one has returned. */
static void *makes_it_again(void *unused) {
    (void)unused;
    wanted = device;
    REQUIRE(take(client, client, DEVICE, 1) == device && take(client, device, VIDEO, 3 * MIB));
    return 0;
}

static void in_another_thread(void) {
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, 0, makes_it_again, 0) && !pthread_join(thread, 0));
}

static void reused_name(void) {
    own_device();
    REQUIRE(take(client, device, VIDEO, MIB));
    meanwhile(in_another_thread);
    REQUIRE(!release(client, device));
    if (arguments[0]) REQUIRE(!release(client, device));
}

static uint32_t elsewhere;

static void *frees_elsewhere(void *of) {
    REQUIRE(!release(elsewhere, (uint32_t)(uintptr_t)of));
    return 0;
}

static uint32_t freed_meanwhile;

static void frees_in_another_thread(void) {
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, 0, frees_elsewhere, (void *)(uintptr_t)freed_meanwhile) && !pthread_join(thread, 0));
}

/* The free of memory fails, and another thread frees its parent, or with an argument another client, before it has returned. */
static void fails_meanwhile(void) {
    own_device();
    uint32_t parent = take(client, client, DEVICE, 0), memory = take(client, parent, VIDEO, 4 * MIB);
    uint32_t second = take(0, 0, CLIENT, 0), its = take(second, second, DEVICE, 1);
    REQUIRE(duplicate(second, its, client, memory));
    elsewhere = client, freed_meanwhile = parent;
    if (arguments[0]) {
        elsewhere = freed_meanwhile = take(0, 0, CLIENT, 0);
        REQUIRE(take(elsewhere, take(elsewhere, elsewhere, DEVICE, 2), VIDEO, 2 * MIB));
    }
    answer(0, 0x57);
    meanwhile(frees_in_another_thread);
    REQUIRE(release(client, memory));
}

/* Clients that one thread frees while another one frees the devices below them. */
static struct {
    _Atomic uint32_t client, device;
} shared[4];

static void *frees_devices(void *of) {
    for (int i = 0, pair = (int)(intptr_t)of; i < 2000; i++) {
        uint32_t its;
        while (!(its = shared[pair].device)) sched_yield();
        uint32_t its_client = shared[pair].client;
        shared[pair].device = 0;
        release(its_client, its);
    }
    return 0;
}

static void *frees_clients(void *of) {
    for (int i = 0, pair = (int)(intptr_t)of; i < 2000; i++) {
        uint32_t own = take_small(0, 0, CLIENT, 4096), its = take_small(own, own, DEVICE, 4096);
        REQUIRE(own && its && take_small(own, its, VIDEO, 4096));
        shared[pair].client = own;
        shared[pair].device = its;
        while (shared[pair].device) sched_yield();
        REQUIRE(!release(own, own));
    }
    return 0;
}

static void freed_twice(void) {
    own_device();
    pthread_t all[8];
    for (intptr_t i = 0; i < 8; i++) REQUIRE(!pthread_create(&all[i], 0, i & 1 ? frees_clients : frees_devices, (void *)(i / 2)));
    for (int i = 0; i < 8; i++) pthread_join(all[i], 0);
}

/* A context on each device, which takes memory of its peers first. */
static void peers(void) {
    start();
    CUcontext other;
    OK(cuCtxCreate_v2(&other, 0, 1));
    leak(3 << 20);
}

/* A jump out of the creation of a context. */
static jmp_buf before_creation;
static void jumps(void) { longjmp(before_creation, 1); }

static void left_creation(void) {
    own_device();
    CUcontext other;
    void (*leaves_by)(void (*)(void)) = (void (*)(void (*)(void)))dlsym(RTLD_DEFAULT, "leaves_by");
    REQUIRE(leaves_by);
    leaves_by(jumps);
    if (!setjmp(before_creation)) {
        OK(cuCtxCreate_v2(&other, 1002, 1));
        REQUIRE(0);
    }
    REQUIRE(take(client, device, VIDEO, MIB));
}

/* An argument that ends behind the end of a stack. */
static ucontext_t program, fiber;
static char *end_of_stack;

static void asks_at_the_end(void) {
    unsigned long requests[] = {number(0x2b, 48), number(0x29, 16), number(0x34, 28)};
    for (int i = 0; i < 3; i++) {
        answer(-1, 0);
        REQUIRE(ioctl(file, requests[i], end_of_stack - 8) == -1);
    }
    REQUIRE(take(client, device, VIDEO, MIB));
}

static void stack_end(void) {
    own_device();
    size_t size = 256 << 10;
    char *stack = mmap(0, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(stack != MAP_FAILED && !mprotect(stack + size, 4096, PROT_NONE));
    end_of_stack = stack + size;
    REQUIRE(!getcontext(&fiber));
    fiber.uc_stack.ss_sp = stack;
    fiber.uc_stack.ss_size = size;
    fiber.uc_link = &program;
    makecontext(&fiber, asks_at_the_end, 0);
    REQUIRE(!swapcontext(&program, &fiber));
}

/* Pools of the program, one of which is destroyed with a live block in it, and the default pool, by its handle too. */
static NOINLINE CUpool make_pool(void) {
    CUpoolProps properties = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    CUpool pool;
    OK(cuMemPoolCreate(&pool, &properties));
    STAY();
    return pool;
}

static void pools(void) {
    start();
    CUdeviceptr block;
    CUpool kept = make_pool(), destroyed = make_pool(), own;
    OK(cuDeviceGetDefaultMemPool(&own, 0));
    OK(cuMemAllocFromPoolAsync(&block, 40 * MIB, kept, 0));
    OK(cuMemAllocFromPoolAsync(&block, 1000, kept, 0));
    OK(cuMemAllocFromPoolAsync(&block, 2000, destroyed, 0));
    OK(cuMemAllocFromPoolAsync(&block, 300, own, 0));
    OK(cuMemAllocAsync(&block, 30, 0));
    OK(cuMemPoolDestroy(destroyed));
}

static void foreign(void) {
    own_device();
    int plain = open("plain", O_RDWR | O_CREAT, 0600), null = file;
    REQUIRE(plain >= 0);
    file = plain;
    errno = 0;
    REQUIRE(!take(client, device, VIDEO, MIB) && errno == ENOTTY);
    file = -1;
    REQUIRE(!take(client, device, VIDEO, MIB));
    printf("without a descriptor: %s\n", strerror(errno)); /* an emulator does not look at the descriptor */
    /* The descriptor of the device becomes that of a file, and the other way round. */
    REQUIRE(dup2(plain, null) == null);
    file = null;
    REQUIRE(!take(client, device, VIDEO, MIB) && errno == ENOTTY);
    int again = open("/dev/null", O_RDWR);
    REQUIRE(dup2(again, plain) == plain);
    file = plain;
    REQUIRE(take(client, device, VIDEO, 9 * MIB));
}

static void unknown_layout(void) {
    own_device();
    REQUIRE(take(client, device, VIDEO, MIB));
    uint32_t words[16] = {client, device, 0, VIDEO};
    ioctl(file, number(0x2b, 56), words);
    REQUIRE(take(client, device, VIDEO, MIB));
}

static void hostile_sizes(void) {
    own_device();
    REQUIRE(take(client, device, VIDEO, MIB));
    unsigned long long odd[] = {0, 1, 4095, ~0ull, 1ull << 41, 4097, 1ull << 63};
    for (int i = 0; i < 7; i++) REQUIRE(take(client, device, VIDEO, odd[i]));
    REQUIRE(take(client, device, VIDEO, MIB));
    if (arguments[0]) {
        for (int i = 0; i < 8; i++) REQUIRE(take(client, device, VIDEO, 4096 * i + 1));
        REQUIRE(take(client, device, VIDEO, MIB));
    }
}

/* NV_ESC_RM_VID_HEAP_CONTROL: memory of the device, of the host, addresses alone, a failure, a free. */
static void heap(void) {
    own_device();
    REQUIRE(take(client, device, VIDEO, MIB));
    const uint32_t calls[5][4] = {{2, 0, 0, 0}, {2, 0, 1u << 25, 0}, {2, 0x80000, 0, 0}, {2, 0, 0, 0x51}, {3, 0, 0, 0}};
    for (int i = 0; i < 5; i++) {
        uint32_t words[46] = {client, device, calls[i][0]};
        words[13] = calls[i][1];
        words[14] = calls[i][2];
        answer(0, calls[i][3]);
        REQUIRE(!ioctl(file, number(0x4a, 184), words));
    }
}

/* Arguments and parameters that cannot be read. */
static void hostile_pointers(void) {
    own_device();
    char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED && !mprotect(pages + 4096, 4096, PROT_NONE));
    void *bad[] = {0, (void *)8, pages + 4096, (void *)~0ul};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++) {
            unsigned long requests[] = {number(0x2b, 48), number(0x29, 16), number(0x34, 28)};
            answer(0, 0);
            answer(-1, 0);
            REQUIRE(ioctl(file, requests[j], bad[i]) == -1);
        }
    /* The last 28 bytes before an unreadable page. */
    uint32_t *words = (uint32_t *)(pages + 4096 - 28), original = take(client, device, VIDEO, MIB);
    uint32_t copy[7] = {client, device, 0, client, original, 0, 99};
    memcpy(words, copy, 28);
    REQUIRE(!ioctl(file, number(0x34, 28), words) && !words[6]);
}

static void *in_thread(void *unused) {
    (void)unused;
    for (int i = 0; i < 200; i++) {
        uint32_t object = take_small(client, device, SYSTEM, 4096);
        if (i) REQUIRE(!release(client, object));
    }
    return 0;
}

static void *in_small_thread(void *unused) {
    (void)unused;
    REQUIRE(take(client, device, VIDEO, 13 * MIB));
    return 0;
}

static void *in_tiny_thread(void *unused) {
    (void)unused;
    static char argument[64];
    for (int i = 0; i < 100; i++) REQUIRE(ioctl(file, 0x5401, argument) == -1);
    return 0;
}

static void threads(void) {
    own_device();
    pthread_t all[8];
    for (int i = 0; i < 8; i++) REQUIRE(!pthread_create(&all[i], 0, in_thread, 0));
    for (int i = 0; i < 8; i++) pthread_join(all[i], 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    REQUIRE(!pthread_attr_setstacksize(&attributes, stack_size(16384)));
    REQUIRE(!pthread_create(&all[0], &attributes, in_tiny_thread, 0));
    pthread_join(all[0], 0);
    REQUIRE(!pthread_attr_setstacksize(&attributes, stack_size(40960)));
    REQUIRE(!pthread_create(&all[0], &attributes, in_small_thread, 0));
    pthread_join(all[0], 0);
}

static void forks(void) {
    own_device();
    REQUIRE(take(client, device, VIDEO, MIB));
    pid_t child = fork();
    if (child == 0) {
        /* The child's requests are its own affair: the recording is the parent's. */
        take(client, device, VIDEO, 8 * MIB);
        release(client, device);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE(take(client, device, VIDEO, 2 * MIB));
}

/* A child that starts CUDA itself, of a parent that has not. */
static void forks_first(void) {
    pid_t child = fork();
    if (child == 0) {
        own_device();
        REQUIRE(take(client, device, VIDEO, 4 * MIB));
        print_kernel();
        exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

static void churn(void) {
    own_device();
    for (int i = 0, turns = atoi(arguments[0]); i < turns; i++) {
        uint32_t object = take(client, device, VIDEO, MIB);
        REQUIRE(!release(client, object));
    }
}

/* Snapshots while the program runs. */
static void snapshots(void) {
    start();
    void (*snapshot)(const char *) = (void (*)(const char *))dlsym(RTLD_DEFAULT, "culeak_snapshot");
    REQUIRE(snapshot);
    snapshot("context");
    leak(5 << 20);
    snapshot("leak");
    OK(cuDevicePrimaryCtxReset_v2(0));
}

/* Whether standard input has neither data nor an end within a millisecond. */
static int recv_nothing(char *byte) {
    struct pollfd input = {0, POLLIN, 0};
    struct timespec wait = {0, 1000000};
    if (ppoll(&input, 1, &wait, 0) == 0) return 1;
    return read(0, byte, 1) > 0;
}

/* The kernel's own sums at a point in time, which a mark names. */
static void mark(const char *name) {
    void (*named)(const char *) = (void (*)(const char *))dlsym(RTLD_DEFAULT, "culeak_mark");
    REQUIRE(named);
    printf("AT %s %llu %llu\n", name, (unsigned long long)kernel_bytes(VIDEO), (unsigned long long)kernel_bytes(SYSTEM));
    named(name);
}

/* Marks between all that changes what the process has, and phases. An argument runs out of memory, or ends the process. */
static void marks(void) {
    own_device();
    unsigned long long (*begin)(const char *) = (unsigned long long (*)(const char *))dlsym(RTLD_DEFAULT, "culeak_phase_begin");
    void (*end)(unsigned long long) = (void (*)(unsigned long long))dlsym(RTLD_DEFAULT, "culeak_phase_end");
    REQUIRE(begin && end);
    mark("context");
    unsigned long long phase = begin("work");
    CUdeviceptr small = leak(600 << 10), large = leak(5 << 20), pooled, most;
    mark("blocks");
    CUstream stream[4];
    CUmodule module;
    CUgraph graph;
    CUexec exec;
    for (int i = 0; i < 4; i++) OK(cuStreamCreate(&stream[i], 1));
    OK(cuModuleLoadData(&module, ".version 7.0\n"));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuMemAllocAsync(&pooled, 1000, 0));
    mark("objects");
    OK(cuCtxSetLimit(0, 4096));
    OK(cuCtxSetLimit(2, 64 << 20));
    REQUIRE(cuCtxSetLimit(99, 1));
    mark("limit");
    most = leak(100 << 20);
    mark("most");
    OK(cuMemFree_v2(large));
    OK(cuMemFree_v2(most));
    OK(cuStreamDestroy_v2(stream[0]));
    OK(cuModuleUnload(module));
    end(phase);
    mark("freed");
    uint32_t own = take(client, device, VIDEO, 3 * MIB);
    answer(0, 0x57);
    REQUIRE(release(client, own));
    mark("failed free");
    REQUIRE(!release(client, own));
    OK(cuMemFree_v2(small));
    uint32_t original = take(client, device, VIDEO, 4 * MIB), copy = duplicate(client, device, client, original);
    mark("duplicate");
    REQUIRE(!release(client, original));
    mark("heir");
    REQUIRE(!release(client, copy));
    mark("before the end");
    if (!arguments[0]) return;
    print_kernel();
    if (!strcmp(arguments[0], "killed")) raise(SIGKILL);
    if (!strcmp(arguments[0], "reset")) {
        OK(cuDevicePrimaryCtxReset_v2(0));
        mark("reset");
    }
    if (!strcmp(arguments[0], "full")) REQUIRE(cuMemAlloc_v2(&most, 1ull << 44) == 2);
}

/* Changes what the process has until its input ends, after a mark. */
static void changes(void) {
    own_device();
    mark("steady");
    printf("ready\n");
    fflush(stdout);
    for (char byte; recv_nothing(&byte);) {
        uint32_t objects[8];
        for (int i = 0; i < 8; i++) objects[i] = take(client, device, VIDEO, (i + 1) * MIB);
        for (int i = 0; i < 8; i++) REQUIRE(!release(client, objects[i]));
    }
}

/* Functions of modules, by name. */
static NOINLINE void use(CUmodule module, const char *name) {
    void *function;
    OK(cuModuleGetFunction(&function, module, name));
    STAY();
}

static void kernels(void) {
    start();
    CUmodule module[4];
    static char long_name[2000];
    memset(long_name, 'x', sizeof long_name - 1);
    for (int i = 0; i < 4; i++) OK(cuModuleLoadData(&module[i], ".version 7.0\n"));
    use(module[0], "add_kernel");
    use(module[0], "another");
    use(module[1], "_ZN5space6kernelEPf");
    use(module[2], long_name);
    OK(cuModuleUnload(module[1]));
    /* A name that ends with a page that can be read. */
    char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED && !mprotect(pages + 4096, 4096, PROT_NONE));
    memcpy(pages + 4096 - 5, "edge", 5);
    use(module[3], pages + 4096 - 5);
}

static void killed(void) {
    start();
    leak(5 << 20);
    print_kernel();
    raise(SIGKILL);
}

/* More than there is room for. */
static void many(void) {
    own_device();
    for (int i = 0; i < 20000; i++) REQUIRE(take(client, device, VIDEO, 4096));
    printf("recorded\n");
}

/* What every program may do with ioctl: results and errors are those of a program without the recorder. */
static void forwards(void) {
    int ends[2], waiting = -1, on = 1;
    struct {
        unsigned short rows, columns, x, y;
    } size = {0};
    start_cuda();
    REQUIRE(!pipe(ends) && write(ends[1], "seven!!", 7) == 7);
    int result = ioctl(ends[0], FIONREAD, &waiting);
    printf("FIONREAD %d %d\n", result, waiting);
    result = ioctl(ends[0], FIONBIO, &on);
    char byte[8];
    REQUIRE(read(ends[0], byte, 8) == 7 && read(ends[0], byte, 8) == -1 && errno == EAGAIN);
    printf("FIONBIO %d\n", result);
    errno = 55;
    result = ioctl(ends[0], FIOCLEX);
    printf("FIOCLEX %d %d\n", result, errno);
    int requests[] = {TIOCGWINSZ, 0x4600, 0x462b, 0x4629, 0x4634, 0x80044629, 0xc01c4634, 0xc0204628};
    for (int i = 0; i < 8; i++) {
        errno = 0;
        result = ioctl(ends[0], (unsigned)requests[i], &size);
        printf("%#x %d %d\n", requests[i], result, errno);
    }
    /* The third argument, and a result that is neither 0 nor -1. */
    unsigned long arguments[] = {0, 1, 0x123456789abcdef0ul, ~0ul};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 8; j++) {
            errno = 0;
            result = ioctl(-77, (unsigned)requests[j], arguments[i]);
            printf("-77: %d %d\n", result, errno);
        }
    fflush(stdout);
}

/* A request in the last destructor of a thread. */
static pthread_key_t key;
static void at_thread_exit(void *unused) {
    (void)unused;
    REQUIRE(take(client, device, VIDEO, 11 * MIB));
}

static void *ends_with_a_request(void *unused) {
    (void)unused;
    pthread_setspecific(key, &key);
    return 0;
}

static void thread_exit(void) {
    own_device();
    REQUIRE(!pthread_key_create(&key, at_thread_exit));
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, 0, ends_with_a_request, 0) && !pthread_join(thread, 0));
}

static int run(int argc, char **argv) {
    static const struct behaviour list[] = {
        BEHAVIOUR(context), BEHAVIOUR(everything), BEHAVIOUR(linear), BEHAVIOUR(contexts), BEHAVIOUR(reset), BEHAVIOUR(sizes),
        BEHAVIOUR(failures), BEHAVIOUR(parents), BEHAVIOUR(duplicates), BEHAVIOUR(foreign), BEHAVIOUR(unknown_layout),
        BEHAVIOUR(hostile_sizes), BEHAVIOUR(heap), BEHAVIOUR(hostile_pointers), BEHAVIOUR(threads), BEHAVIOUR(forks), BEHAVIOUR(forks_first),
        BEHAVIOUR(churn), BEHAVIOUR(forwards), BEHAVIOUR(snapshots), BEHAVIOUR(marks), BEHAVIOUR(kernels), BEHAVIOUR(changes), BEHAVIOUR(killed), BEHAVIOUR(many), BEHAVIOUR(thread_exit),
        BEHAVIOUR(reused_name), BEHAVIOUR(freed_twice), BEHAVIOUR(peers), BEHAVIOUR(left_creation), BEHAVIOUR(stack_end), BEHAVIOUR(pools), BEHAVIOUR(fails_meanwhile), {0, 0}};
    (void)argc;
    return behave(list, argv);
}

int main(int argc, char **argv) {
    int status = run(argc, argv);
    print_kernel();
    return status;
}
