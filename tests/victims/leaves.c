/* Preloaded after the recorder: a driver function that ends its thread, and a runtime function that is left by a jump. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>

enum { ENDS_THREAD = 1001, JUMPS = 1002 };

extern sigjmp_buf leaves_to __attribute__((weak));

__attribute__((visibility("default"))) int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    if (bytes == ENDS_THREAD) pthread_exit(NULL);
    int (*next)(unsigned long long *, size_t) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    return next(address, bytes);
}

static void (*leave)(void);

/* How the creation of a context is left. */
__attribute__((visibility("default"))) void leaves_by(void (*work)(void)) { leave = work; }

__attribute__((visibility("default"))) int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    int (*next)(void **, unsigned, int) = dlsym(RTLD_NEXT, "cuCtxCreate_v2");
    int result = next(context, flags == JUMPS ? 0 : flags, device);
    if (flags == JUMPS) leave();
    return result;
}

/* A stream that the recorder has not seen. */
__attribute__((visibility("default"))) int unseen_stream(void **stream) {
    int (*next)(void **, unsigned) = dlsym(RTLD_NEXT, "cuStreamCreate");
    return next(stream, 1);
}

static void (*meanwhile)(void *);

/* What happens to an event after the driver has created it, before its creator knows. */
__attribute__((visibility("default"))) void events_meet(void (*work)(void *)) { meanwhile = work; }

__attribute__((visibility("default"))) int cuEventCreate(void **event, unsigned flags) {
    int (*next)(void **, unsigned) = dlsym(RTLD_NEXT, "cuEventCreate");
    int result = next(event, flags);
    if (meanwhile) meanwhile(*event);
    return result;
}

__attribute__((visibility("default"))) int cudaMalloc(void **address, size_t bytes) {
    if (bytes == JUMPS && &leaves_to) siglongjmp(leaves_to, 1);
    int (*next)(void **, size_t) = dlsym(RTLD_NEXT, "cudaMalloc");
    return next(address, bytes);
}
