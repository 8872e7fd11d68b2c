/* Programs that fail if a recorder takes the loader's lock, changes dlerror or blocks unwinding. */
#include "victim.h"
#include <pthread.h>
#include <link.h>
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

/* Opens a plugin whose constructor waits for another thread. */
static void opens(void) {
    void *plugin = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) printf("%s\n", dlerror());
    REQUIRE(plugin);
}

/* The same, in a program that has used the runtime before, so that the runtime no longer asks the loader. */
static void opens_after_use(void) {
    int (*use)(size_t) = dlsym(RTLD_DEFAULT, "use_runtime");
    REQUIRE(use && !use(100));
    opens();
}

static void looks_up(void) {
    void *library = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library);
    dlerror();
    void *found = dlsym(library, "cuInit");
    char *error = dlerror();
    printf("%s, dlerror: %s\n", found ? "found" : "not found", error ? error : "none");
}

static void clean_up(void *nothing) {
    (void)nothing;
    printf("cleaned up\n");
}

static void *ends(void *nothing) {
    CUdeviceptr address;
    pthread_cleanup_push(clean_up, nothing);
    cuMemAlloc_v2(&address, 1001);
    pthread_cleanup_pop(0);
    return (void *)1;
}

static void ends_in_the_driver(void) {
    start_cuda();
    leak(16);
    pthread_t thread;
    void *result;
    REQUIRE(!pthread_create(&thread, NULL, ends, NULL));
    REQUIRE(!pthread_join(thread, &result));
    printf("joined: %d\n", result == NULL);
    leak(17);
}

/* A runtime function that is left by a jump out of the driver. */
sigjmp_buf leaves_to;

static void jumps_out_of_the_runtime(void) {
    int (*allocate)(void **, size_t) = dlsym(RTLD_DEFAULT, "cudaMalloc");
    REQUIRE(allocate);
    void *address;
    start_cuda();
    if (!sigsetjmp(leaves_to, 1)) {
        allocate(&address, 1002);
        printf("came back\n");
    }
    leak(17);
}

/* A callback of dl_iterate_phdr waits for a thread that makes the first allocation. */
static void *allocates(void *context) {
    OK(cuCtxSetCurrent(context));
    leak(300);
    return NULL;
}

static int waits(struct dl_phdr_info *info, size_t size, void *context) {
    (void)info, (void)size;
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, allocates, context));
    REQUIRE(!pthread_join(thread, NULL));
    return 1;
}

static void waits_in_a_callback(void) { REQUIRE(dl_iterate_phdr(waits, start_cuda())); }

static void forks_with_runtime(void) {
    int (*use)(size_t) = dlsym(RTLD_DEFAULT, "use_runtime");
    int (*ordered)(void **, size_t, void *) = dlsym(RTLD_DEFAULT, "cudaMallocAsync");
    REQUIRE(use && ordered && !use(100));
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        void *address;
        int result = ordered(&address, 10, NULL);
        fflush(stdout);
        _exit(result == 500);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
}

static struct link_map *map_of(void *handle) {
    struct link_map *map;
    REQUIRE(!dlinfo(handle, RTLD_DI_LINKMAP, &map));
    return map;
}

static int find_runtime(struct dl_phdr_info *info, size_t size, void *range) {
    (void)size;
    if (!strstr(info->dlpi_name, "libcudart")) return 0;
    uintptr_t *bounds = range;
    bounds[0] = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && end > bounds[1]) bounds[1] = end;
    }
    return 1;
}

/* A plugin is mapped again at the same address, its runtime at another, after as many unloads as a byte can count. */
static void reopens(void) {
    start_cuda();
    void *plugin = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    REQUIRE(plugin);
    int (*use)(size_t) = dlsym(plugin, "use_runtime");
    REQUIRE(use);
    uintptr_t base = map_of(plugin)->l_addr, runtime[2] = {0, 0};
    REQUIRE(dl_iterate_phdr(find_runtime, runtime));
    printf("used: %d\n", use(100));
    REQUIRE(!dlclose(plugin));
    for (int i = 0; i < 255; i++) {
        void *other = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        REQUIRE(other && !dlclose(other));
    }
    size_t length = (runtime[1] - runtime[0] + 4095) & ~4095ul;
    void *blocked = mmap((void *)runtime[0], length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    REQUIRE(blocked == (void *)runtime[0]);
    plugin = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    REQUIRE(plugin);
    printf("%s\n", map_of(plugin)->l_addr == base ? "same place" : "elsewhere");
    use = dlsym(plugin, "use_runtime");
    REQUIRE(use);
    printf("used: %d\n", use(100));
}

/* A plugin is closed through a `dlclose` that was looked up, and another takes its place. */
static void closes_by_handle(void) {
    start_cuda();
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    REQUIRE(libc);
    int (*closes)(void *) = dlsym(libc, "dlclose");
    REQUIRE(closes);
    uintptr_t first = 0;
    for (char **path = arguments; *path; path++) {
        void *plugin = dlopen(*path, RTLD_NOW | RTLD_LOCAL);
        REQUIRE(plugin);
        uintptr_t base = map_of(plugin)->l_addr;
        if (!first) first = base;
        int (*run)(void) = dlsym(plugin, "run_plugin");
        REQUIRE(run);
        OK(run());
        REQUIRE(!closes(plugin));
        printf("%s\n", base == first ? "same place" : "elsewhere");
    }
}

/* A host that embeds Python for a while. Argument: libpython. */
static void embeds(void) {
    start_cuda();
    void *library = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    if (!library) printf("%s\n", dlerror());
    REQUIRE(library);
    void (*initialize)(void) = dlsym(library, "Py_Initialize");
    int (*run)(const char *) = dlsym(library, "PyRun_SimpleString");
    int (*finalize)(void) = dlsym(library, "Py_FinalizeEx");
    REQUIRE(initialize && run && finalize);
    initialize();
    REQUIRE(!run("import sys"));
    leak(100);
    REQUIRE(!finalize());
    REQUIRE(!dlclose(library));
    leak(200);
}

/* A plugin uses its runtime, also after a library that a constructor had opened was closed. */
extern void close_early(void) __attribute__((weak));

static void uses(void) {
    void *plugin = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) printf("%s\n", dlerror());
    REQUIRE(plugin);
    int (*use)(size_t) = dlsym(plugin, "use_runtime");
    REQUIRE(use);
    printf("used: %d\n", use(100));
    if (close_early) {
        close_early();
        printf("used: %d\n", use(200));
    }
}

/* A runtime function is left by a jump, and the stack on which it was called is unmapped. */
static ucontext_t program_context;

static void allocates_and_jumps(void) {
    int (*allocate)(void **, size_t) = dlsym(RTLD_DEFAULT, "cudaMalloc");
    void *address;
    REQUIRE(allocate);
    allocate(&address, 1002);
    printf("came back\n");
}

static void leaks_17(void) { leak(17); }

static void gives_a_stack_back(void) {
    enum { STACK = 256 << 10 };
    start_cuda();
    char *stacks = mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(stacks != MAP_FAILED);
    for (int upper = 1; upper >= 0; upper--) {
        ucontext_t context;
        REQUIRE(!getcontext(&context));
        context.uc_stack.ss_sp = stacks + upper * STACK;
        context.uc_stack.ss_size = STACK;
        context.uc_link = &program_context;
        makecontext(&context, upper ? allocates_and_jumps : leaks_17, 0);
        if (!sigsetjmp(leaves_to, 1)) REQUIRE(!swapcontext(&program_context, &context));
        if (upper) REQUIRE(!munmap(stacks + STACK, STACK));
    }
    printf("done\n");
}

/* The driver is opened while a thread registers a block with the recorder. */
volatile int relocates, block_registered;

static void (*register_block)(const char *, const void *, size_t, void *);

static void *registers(void *nothing) {
    while (!relocates) {}
    if (register_block) register_block("pool", arguments, 100, nothing);
    block_registered = 1;
    return NULL;
}

static void opens_the_driver(void) {
    pthread_t thread;
    register_block = dlsym(RTLD_DEFAULT, "culeak_alloc");
    REQUIRE(!pthread_create(&thread, NULL, registers, NULL));
    void *driver = dlopen(arguments[0], RTLD_NOW);
    if (!driver) printf("%s\n", dlerror());
    REQUIRE(driver && !pthread_join(thread, NULL));
    printf("opened\n");
}

/* The program closes all descriptors, opens its own file under each number, and locks it. */
static void locks(void) {
    start_cuda();
    leak(1);
    for (int number = 3; number < 256; number++) close(number);
    char path[] = "lockedXXXXXX";
    int file = mkstemp(path);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    REQUIRE(file >= 0 && !unlink(path));
    for (int number = file + 1; number < 256; number++) REQUIRE(dup2(file, number) == number);
    REQUIRE(!fcntl(file, F_SETLK, &lock));
    for (int i = 0; i < 20000; i++) leak(1);
    pid_t child = fork();
    if (!child) {
        struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(file, F_GETLK, &other) || other.l_type == F_UNLCK);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    printf("%s\n", status ? "lost the lock" : "locked");
}

MAIN(BEHAVIOUR(uses), BEHAVIOUR(gives_a_stack_back), BEHAVIOUR(opens_the_driver), BEHAVIOUR(locks), BEHAVIOUR(opens), BEHAVIOUR(opens_after_use), BEHAVIOUR(looks_up), BEHAVIOUR(ends_in_the_driver), BEHAVIOUR(jumps_out_of_the_runtime), BEHAVIOUR(waits_in_a_callback), BEHAVIOUR(forks_with_runtime), BEHAVIOUR(reopens), BEHAVIOUR(closes_by_handle), BEHAVIOUR(embeds))
