/* A preload that wraps dlclose and looks the next one up at the first call, as many tools do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

__attribute__((visibility("default"))) int dlclose(void *handle) {
    static int (*real)(void *);
    if (!real) {
        real = (int (*)(void *))dlsym(RTLD_NEXT, "dlclose");
        printf("looked up\n");
    }
    return real(handle);
}
