/* Another tool's preload: wraps cudaMalloc and cuMemAlloc_v2, counts the calls, and forwards them.
 *   -DBY_NEXT    to dlsym(RTLD_NEXT, name), as the manual page of dlsym shows
 *   -DBY_HANDLE  to what the libraries export, looked up through their handles
 *   -DBY_DLSYM   the same, and it exports `dlsym`, which returns these functions
 *   -DHIDDEN     the two functions are not exported: only its `dlsym` returns them
 * At its end it prints how many calls it received. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "oldest_glibc.h"
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifdef HIDDEN
#define EXPORT __attribute__((visibility("hidden")))
#else
#define EXPORT __attribute__((visibility("default")))
#endif
enum { NO_FUNCTION = 999 };

static int runtime_calls, driver_calls;

#ifdef BY_DLSYM
typedef void *look_up(void *, const char *);
static look_up *libc_dlsym(void) {
    static look_up *found;
    if (!found) found = (look_up *)dlvsym(RTLD_NEXT, "dlsym", OLDEST_GLIBC);
    return found;
}
#else
#define libc_dlsym() dlsym
#endif

static void *forward_to(const char *library, const char *name) {
#ifdef BY_NEXT
    (void)library;
    return dlsym(RTLD_NEXT, name);
#else
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return handle ? libc_dlsym()(handle, name) : NULL;
#endif
}

EXPORT int cudaMalloc(void **address, size_t bytes) {
    static int (*next)(void **, size_t);
    runtime_calls++;
    if (!next) next = forward_to("libcudart.so.12", "cudaMalloc");
    return next ? next(address, bytes) : NO_FUNCTION;
}

EXPORT int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    static int (*next)(unsigned long long *, size_t);
    driver_calls++;
    if (!next) next = forward_to("libcuda.so.1", "cuMemAlloc_v2");
    return next ? next(address, bytes) : NO_FUNCTION;
}

#ifdef BY_DLSYM
__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name) {
    void *found = libc_dlsym()(handle, name);
    /* Only names that the process has: a check for CUDA must still fail without CUDA. */
    if (found && !strcmp(name, "cudaMalloc")) return (void *)cudaMalloc;
    if (found && !strcmp(name, "cuMemAlloc_v2")) return (void *)cuMemAlloc_v2;
    return found;
}
#endif

__attribute__((destructor)) static void report(void) {
    fprintf(stderr, "wrapper: cudaMalloc %d, cuMemAlloc_v2 %d\n", runtime_calls, driver_calls);
}
