/* Looks names up in every way and prints the results without addresses: the same with and without a recorder. */
#include "oldest_glibc.h"
#include "victim.h"

static const char *present(void *address) { return address ? "found" : "null"; }

/* A process without libcuda checks for CUDA. */
static void without_cuda(void) {
    const char *names[] = {"cuMemAlloc_v2", "cuInit", "cudaMalloc", "cuGetProcAddress_v2", "dlsym", "dlclose", "malloc"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        printf("default %s: %s", names[i], present(dlsym(RTLD_DEFAULT, names[i])));
        printf(" %s\n", dlerror() ? "set" : "none");
        printf("next %s: %s\n", names[i], present(dlsym(RTLD_NEXT, names[i])));
        void *self = dlopen(NULL, RTLD_NOW);
        printf("self %s: %s\n", names[i], present(dlsym(self, names[i])));
        dlclose(self);
    }
}

/* dlerror must describe this call, and return nothing after success. */
static void errors(void) {
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    REQUIRE(libc);
    printf("%s\n", dlerror() ? "stale" : "clean");
    printf("%s\n", present(dlsym(libc, "cuMemAlloc_v2")));
    printf("%s\n", dlerror());
    printf("%s\n", dlerror() ? "twice" : "once");
    printf("%s\n", present(dlsym(libc, "no_such_name")));
    printf("%s\n", dlerror());
    printf("%s\n", present(dlsym(libc, "malloc")));
    printf("%s\n", dlerror() ? "stale" : "clean");
    printf("%s\n", present(dlvsym(libc, "malloc", "GLIBC_9.9")));
    printf("%s\n", dlerror());
    printf("%s\n", present(dlvsym(libc, "malloc", OLDEST_GLIBC)));
    printf("%s\n", present(dlsym(RTLD_NEXT, "no_such_name")));
    printf("%s\n", dlerror() ? "set" : "none");
    printf("%s\n", present(dlsym(RTLD_DEFAULT, "cuMemAlloc_v9")));
    printf("%s\n", dlerror() ? "set" : "none");
}

/* dlvsym: in libcuda, which has no versions; and for libc's own dlsym, a common technique. */
static void versions(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(driver);
    printf("%s\n", present(dlvsym(driver, "cuMemAlloc_v2", "libcuda.so.1")));
    printf("%s\n", dlerror() ? "set" : "none");
    void *(*look_up)(void *, const char *) = dlvsym(RTLD_NEXT, "dlsym", OLDEST_GLIBC);
    printf("%s\n", present((void *)look_up));
    if (look_up) printf("%s\n", present(look_up(driver, "cuMemAlloc_v2")));
}

/* Results of both forms of cuGetProcAddress. */
static void proc_addresses(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(driver);
    CUresult (*one)(const char *, void **, int, uint64_t) = dlsym(driver, "cuGetProcAddress");
    CUresult (*two)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    REQUIRE(one && two);
    const char *names[] = {"", "cuMemAlloc", "cuMemAlloc_v2", "cuNoSuchThing", "cuMemAllocAsync", "cuGetProcAddress", "cuInit"};
    int versions[] = {0, 2000, 3020, 11030, 12000, 12080, 99990};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (size_t v = 0; v < sizeof versions / sizeof *versions; v++)
            for (int flags = 0; flags < 4; flags++) {
                void *untouched = (void *)0xabcd, *address = untouched;
                int status[2] = {-7, -7};
                CUresult result = one(names[n], &address, versions[v], flags);
                printf("%s %d %d: %d %s", names[n], versions[v], flags, result, address == untouched ? "untouched" : present(address));
                address = untouched;
                result = two(names[n], &address, versions[v], flags, status);
                printf(" | %d %s %d %d", result, address == untouched ? "untouched" : present(address), status[0], status[1]);
                address = untouched;
                result = two(names[n], &address, versions[v], flags, NULL);
                printf(" | %d %s\n", result, address == untouched ? "untouched" : present(address));
            }
}

/* cuGetProcAddress looked up through itself: at 11030 the form with 4 arguments, at 12000 the one with 5. */
static void proc_address_of_itself(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*first)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    REQUIRE(first);
    CUresult (*one)(const char *, void **, int, uint64_t) = NULL;
    CUresult (*two)(const char *, void **, int, uint64_t, int *) = NULL;
    CUresult (*allocate)(CUdeviceptr *, size_t);
    CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*set)(CUcontext);
    CUcontext context;
    CUdeviceptr address;
    int status[2] = {-7, -7};
    OK(first("cuGetProcAddress", (void **)&one, 11030, 0, NULL));
    OK(first("cuGetProcAddress", (void **)&two, 12000, 0, NULL));
    REQUIRE(one && two && (void *)one != (void *)two);
    OK(two("cuInit", (void **)&init, 2000, 0, status));
    REQUIRE(status[0] == 0 && status[1] == -7);
    OK(two("cuDevicePrimaryCtxRetain", (void **)&retain, 7000, 0, NULL));
    OK(two("cuCtxSetCurrent", (void **)&set, 4000, 0, NULL));
    OK(init(0));
    OK(retain(&context, 0));
    OK(set(context));
    OK(one("cuMemAlloc", (void **)&allocate, 12080, 0));
    OK(allocate(&address, 40));
    OK(two("cuMemAlloc", (void **)&allocate, 12080, 0, NULL));
    OK(allocate(&address, 50));
}

MAIN(BEHAVIOUR(without_cuda), BEHAVIOUR(errors), BEHAVIOUR(versions), BEHAVIOUR(proc_addresses), BEHAVIOUR(proc_address_of_itself))
