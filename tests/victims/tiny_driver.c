/* A driver that is a mere counter: no lock, no allocation, so that a signal may interrupt it anywhere.
 * Stands in for libcuda.so.1 where handlers allocate or threads end inside a call. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#ifdef ADDRESSES_PER_THREAD
/* Threads share nothing, so that a measurement never waits for this driver: each has 64 GiB of addresses. */
static uint64_t threads = 0x700000000000;
static __thread uint64_t next __attribute__((tls_model("initial-exec")));
static uint64_t take(uint64_t bytes) {
    if (next == 0) next = __atomic_fetch_add(&threads, (uint64_t)1 << 36, __ATOMIC_RELAXED);
    next += bytes;
    return next - bytes;
}
#else
static uint64_t next = 0x700000000000;
static uint64_t take(uint64_t bytes) { return __atomic_fetch_add(&next, bytes, __ATOMIC_RELAXED); }
#endif

#ifdef ANSWERS_IOCTL
/* Every request succeeds: this library takes the place of the kernel driver, too. */
#include "drivers_file.h"
EXPORT int ioctl(int file, unsigned long request, ...) { (void)file, (void)request; return 0; }
/* And that of PyTorch, whose profiler is off. */
EXPORT void report(void) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
void report(void) {}
#endif

/* With TINY_RECYCLES set, a thread gets its last freed address again, for any size. */
static int recycles;
static __thread uint64_t freed[64];
static __thread int freed_count;

EXPORT int cuInit(unsigned flags) { (void)flags; recycles = getenv("TINY_RECYCLES") != NULL; return 0; }
EXPORT int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
EXPORT int cuDeviceGetCount(int *count) { *count = 1; return 0; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : 0; }
EXPORT int cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    strncpy(name, "Tiny", length);
    return 0;
}
EXPORT int cuDeviceGetUuid(char *uuid, int device) { (void)device; memset(uuid, 0x11, 16); return 0; }
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = (void *)0x1000; return 0; }
static __thread void *current __attribute__((tls_model("initial-exec"))) = (void *)0x1000;
EXPORT int cuCtxSetCurrent(void *context) { current = context; return 0; }
EXPORT int cuCtxGetCurrent(void **context) { *context = current; return 0; }
EXPORT int cuCtxGetDevice(int *device) { *device = 0; return 0; }

/* Every created context has the same handle. `tiny_destroyed` is called when one is destroyed, before the call returns. */
EXPORT void (*tiny_destroyed)(void);
EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    (void)flags, (void)device;
    *context = current = (void *)0x2000;
    return 0;
}
EXPORT int cuCtxDestroy_v2(void *context) {
    (void)context;
    current = (void *)0x1000;
    void (*call)(void) = tiny_destroyed;
    tiny_destroyed = NULL;
    if (call) call();
    return 0;
}

/* Handles are numbers. */
EXPORT int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = (void *)take(64); return 0; }
EXPORT int cuStreamDestroy_v2(void *stream) { (void)stream; return 0; }
EXPORT int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = (void *)take(64); return 0; }
EXPORT int cuEventDestroy_v2(void *event) { (void)event; return 0; }

/* `tiny_freed` is called when memory is free, before the call that freed it returns. The next allocation gets that
 * address, on whatever thread. */
EXPORT void (*tiny_freed)(void);
static uint64_t free_again;

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    if (bytes >> 50) return 2;
    if (free_again) {
        *address = free_again;
        free_again = 0;
        return 0;
    }
    if (recycles && freed_count) {
        *address = freed[--freed_count];
        return 0;
    }
    *address = take((bytes + 511) & ~(size_t)511);
    return 0;
}
EXPORT int cuMemFree_v2(uint64_t address) {
    void (*call)(void) = tiny_freed;
    if (call) {
        tiny_freed = NULL;
        free_again = address;
        call();
        return 0;
    }
    if (recycles && freed_count < 64) freed[freed_count++] = address;
    return 0;
}

#ifdef PLAIN_NAMES
/* The same functions under names that no recorder knows: a bench calls them bare and recorded by turns in one process. */
EXPORT int plain_cuMemAlloc_v2(uint64_t *address, size_t bytes) __attribute__((alias("cuMemAlloc_v2")));
EXPORT int plain_cuMemFree_v2(uint64_t address) __attribute__((alias("cuMemFree_v2")));
EXPORT int plain_cuStreamCreate(void **stream, unsigned flags) __attribute__((alias("cuStreamCreate")));
EXPORT int plain_cuStreamDestroy_v2(void *stream) __attribute__((alias("cuStreamDestroy_v2")));
EXPORT int plain_cuEventCreate(void **event, unsigned flags) __attribute__((alias("cuEventCreate")));
EXPORT int plain_cuEventDestroy_v2(void *event) __attribute__((alias("cuEventDestroy_v2")));
EXPORT int plain_ioctl(int file, unsigned long request, ...) __attribute__((alias("ioctl")));
#endif
