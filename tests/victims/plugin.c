/* A plugin that leaks. Compiled several times: -DLEAKS=<its function> -DBYTES=<how much>. */
#include "cuda.h"

#define EXPORT __attribute__((visibility("default")))

static char weight[256 << 10]; /* makes all plugins the same size, so that one fits where another was mapped */

static __attribute__((noinline)) CUresult LEAKS(CUdeviceptr *address) {
    weight[BYTES] = 1;
    CUresult result = cuMemAlloc_v2(address, BYTES);
    __asm__ volatile("" ::: "memory");
    return result;
}

EXPORT CUdeviceptr plugin_address;

EXPORT CUresult plugin_free(CUdeviceptr address) { return cuMemFree_v2(address); }

EXPORT CUresult run_plugin(void) {
    if (!open_driver()) return -1;
    CUresult result = LEAKS(&plugin_address);
    __asm__ volatile("" ::: "memory");
    return result;
}
