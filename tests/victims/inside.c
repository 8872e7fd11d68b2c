/* A library that uses CUDA by itself, however it is loaded: it allocates 64 and BYTES bytes and frees the 64. With -DRUNTIME it calls a
 * runtime that is linked into it, else the driver. */
#ifdef RUNTIME
#include "../fake_driver/runtime/runtime.c"
#include <errno.h>
#else
#include "victim.h"
#endif

static __attribute__((noinline, noclone)) int LEAKS(void) {
#ifdef RUNTIME
    void *freed, *kept;
    int result = cudaMalloc(&freed, 64) || cudaMalloc(&kept, BYTES) || cudaFree(freed);
#else
    int result = cuMemFree_v2(leak(64));
    leak(BYTES);
#endif
    __asm__ volatile("" ::: "memory");
    return result;
}

__attribute__((visibility("default"))) int run_inside(void) {
#ifndef RUNTIME
    start_cuda();
#endif
    errno = 77;
    int result = LEAKS();
    __asm__ volatile("" ::: "memory");
    return result ? result : errno == 77 ? 0 : -errno;
}
