/* What every victim needs: reports which call failed, starts CUDA, selects a behaviour by its name. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cuda.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Exit status 3: a CUDA call returned something unexpected; 4: another condition failed. */
#define EXPECT(expected, call) \
    do { \
        CUresult got_ = (call); \
        if (got_ != (expected)) { \
            printf("%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, got_); \
            fflush(stdout); \
            _exit(3); \
        } \
    } while (0)
#define OK(call) EXPECT(CUDA_SUCCESS, call)
#define REQUIRE(condition) \
    do { \
        if (!(condition)) { \
            printf("%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            fflush(stdout); \
            _exit(4); \
        } \
    } while (0)
#define NOINLINE __attribute__((noinline, noclone))
/* Keeps a call from becoming a tail call, so that its caller stays on the stack. */
#define STAY() __asm__ volatile("" ::: "memory")

/* The size of a small stack: `bytes`, or what the machine requires (128 KiB on aarch64). */
static __attribute__((unused)) size_t stack_size(size_t bytes) {
    long least = sysconf(_SC_THREAD_STACK_MIN);
    return least > (long)bytes ? (size_t)least : bytes;
}

static __attribute__((unused)) CUcontext start_cuda(void) {
    CUcontext context;
    CUdevice device;
    REQUIRE(open_driver());
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    return context;
}

static NOINLINE __attribute__((unused)) CUdeviceptr leak(size_t bytes) {
    CUdeviceptr address = 0;
    OK(cuMemAlloc_v2(&address, bytes));
    STAY();
    return address;
}

struct behaviour {
    const char *name;
    void (*run)(void);
};

static __attribute__((unused)) char **arguments;

static __attribute__((unused)) int behave(const struct behaviour *list, char **argv) {
    for (arguments = argv + 1; list->name; list++)
        if (argv[1] && !strcmp(list->name, argv[1])) {
            arguments = argv + 2;
            list->run();
            printf("done\n");
            return 0;
        }
    printf("no behaviour %s\n", argv[1] ? argv[1] : "(none)");
    return 5;
}

#define BEHAVIOUR(name) {#name, name}
#define MAIN(...) \
    int main(int argc, char **argv) { \
        (void)argc; \
        static const struct behaviour list[] = {__VA_ARGS__, {0, 0}}; \
        return behave(list, argv); \
    }
