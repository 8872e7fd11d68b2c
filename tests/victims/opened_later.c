/* Opens the preload library (argument 1) while another thread runs. Then both threads allocate through it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition) \
    do { \
        if (!(condition)) { \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(4); \
        } \
    } while (0)

typedef uint64_t address;
static int (*allocate)(address *, size_t);
static int (*set_current)(void *);
static void *context;
static pthread_barrier_t opened;

static void *of_earlier_thread(void *nothing) {
    (void)nothing;
    pthread_barrier_wait(&opened);
    address block;
    REQUIRE(!set_current(context));
    REQUIRE(!allocate(&block, 100));
    return NULL;
}

static void *found(void *library, const char *name) {
    void *function = dlsym(library, name);
    REQUIRE(function);
    return function;
}

int main(int argc, char **argv) {
    REQUIRE(argc == 2);
    pthread_t earlier;
    REQUIRE(!pthread_barrier_init(&opened, NULL, 2));
    REQUIRE(!pthread_create(&earlier, NULL, of_earlier_thread, NULL));
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(driver);
    void *preload = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!preload) {
        printf("%s\n", dlerror());
        return 1;
    }
    int (*init)(unsigned) = found(driver, "cuInit");
    int (*retain)(void **, int) = found(driver, "cuDevicePrimaryCtxRetain");
    set_current = found(driver, "cuCtxSetCurrent");
    allocate = found(preload, "cuMemAlloc_v2");
    REQUIRE(!init(0));
    REQUIRE(!retain(&context, 0));
    REQUIRE(!set_current(context));
    address block;
    REQUIRE(!allocate(&block, 200));
    pthread_barrier_wait(&opened);
    REQUIRE(!pthread_join(earlier, NULL));
    return 0;
}
