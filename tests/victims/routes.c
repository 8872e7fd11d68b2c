/* Allocates and frees by the route named in the first argument. Built as
 *   -DLINKED  a program linked with the runtime and the driver
 *   -DPLUGIN  a library linked with them, for the program below to open
 *   neither   a program that finds them at run time; the second argument is a plugin or a runtime */
#include "victim.h"

struct functions {
    int (*runtime_alloc)(void **, size_t), (*runtime_free)(void *);
    CUresult (*driver_alloc)(CUdeviceptr *, size_t), (*driver_free)(CUdeviceptr);
};

/* Keeps 1000 and 500 bytes, frees 64 and 32, and prints what is live: behind a wrapper that finds nothing, every call fails. */
static NOINLINE void use(struct functions cuda) {
    void *kept = NULL, *freed = NULL;
    CUdeviceptr kept_too = 0, freed_too = 0;
    int results[4] = {cuda.runtime_alloc(&kept, 1000), cuda.runtime_alloc(&freed, 64),
                      cuda.driver_alloc(&kept_too, 500), cuda.driver_alloc(&freed_too, 32)};
    int made = 0, held = 0;
    for (int i = 0; i < 4; i++) {
        printf("allocation %d: %d\n", i, results[i]);
        made += !results[i];
        held += i % 2 == 0 && !results[i];
    }
    if (!results[1]) OK(cuda.runtime_free(freed));
    if (!results[3]) OK(cuda.driver_free(freed_too));
    printf("made %d held %d bytes %d\n", made, held, (results[0] ? 0 : 1000) + (results[2] ? 0 : 500));
}

#if defined LINKED || defined PLUGIN
extern int cudaMalloc(void **, size_t), cudaFree(void *);

__attribute__((visibility("default"))) void use_linked(void) {
    use((struct functions){cudaMalloc, cudaFree, cuMemAlloc_v2, cuMemFree_v2});
}
#endif

#if defined LINKED
static void linked(void) { use_linked(); }

MAIN(BEHAVIOUR(linked))
#elif !defined PLUGIN
static void *load(const char *path, int flags) {
    void *library = dlopen(path, RTLD_NOW | flags);
    if (!library) printf("%s\n", dlerror());
    REQUIRE(library);
    return library;
}

static void run_plugin(int flags) {
    void (*run)(void) = dlsym(load(arguments[0], flags), "use_linked");
    REQUIRE(run);
    run();
}

static void local_plugin(void) { run_plugin(RTLD_LOCAL); }

static void global_plugin(void) { run_plugin(RTLD_GLOBAL); }

static void use_found(void *runtime, void *driver) {
    struct functions cuda = {dlsym(runtime, "cudaMalloc"), dlsym(runtime, "cudaFree"), dlsym(driver, "cuMemAlloc_v2"), dlsym(driver, "cuMemFree_v2")};
    REQUIRE(cuda.runtime_alloc && cuda.runtime_free && cuda.driver_alloc && cuda.driver_free);
    use(cuda);
}

static void default_scope(void) {
    load(arguments[0], RTLD_GLOBAL);
    load("libcuda.so.1", RTLD_GLOBAL);
    use_found(RTLD_DEFAULT, RTLD_DEFAULT);
}

static void handle(void) {
    void *runtime = load(arguments[0], RTLD_LOCAL);
    use_found(runtime, load("libcuda.so.1", RTLD_LOCAL));
}

static void proc_address(void) {
    void *runtime = load(arguments[0], RTLD_LOCAL), *driver = load("libcuda.so.1", RTLD_LOCAL);
    CUresult (*look_up)(const char *, void *, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    REQUIRE(look_up);
    struct functions cuda = {dlsym(runtime, "cudaMalloc"), dlsym(runtime, "cudaFree"), 0, 0};
    REQUIRE(cuda.runtime_alloc && cuda.runtime_free);
    OK(look_up("cuMemAlloc", &cuda.driver_alloc, 3020, 0, NULL));
    OK(look_up("cuMemFree", &cuda.driver_free, 3020, 0, NULL));
    use(cuda);
}

MAIN(BEHAVIOUR(local_plugin), BEHAVIOUR(global_plugin), BEHAVIOUR(default_scope), BEHAVIOUR(handle), BEHAVIOUR(proc_address))
#endif
