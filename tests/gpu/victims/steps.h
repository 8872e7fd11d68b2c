// Shared by the victims that compare the recording with NVML: each step prints what NVML counts for the process, as
//     FACT pid at_NNN_name bytes
// and requests a snapshot of that name from culeak, if that is loaded.
#pragma once

#include "victim.h"

#include <cuda.h>
#include <dlfcn.h>

enum { MIB = 1 << 20, MOST_DEVICES = 16 };

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned instance, compute_instance;
} CountedProcess;

static void *nvml(const char *name) {
    static void *library;
    if (!library) library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) unsupported("libnvidia-ml.so.1, which has the kernel driver's figures");
    return found;
}

static void *nvml_device(int ordinal) {
    static void *devices[MOST_DEVICES];
    if (devices[ordinal]) return devices[ordinal];
    OK(((int (*)(void))nvml("nvmlInit_v2"))());
    CUuuid uuid;
    CUdevice device;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, ordinal));
    OK(cuDeviceGetUuid(&uuid, device));
    char text[64] = "GPU-";
    for (int i = 0, at = 4; i < 16; i++)
        at += snprintf(text + at, sizeof text - at, "%02x%s", (unsigned char)uuid.bytes[i], i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
    OK(((int (*)(const char *, void **))nvml("nvmlDeviceGetHandleByUUID"))(text, &devices[ordinal]));
    return devices[ordinal];
}

// The processes on a device that NVML lists.
static unsigned list_processes(int ordinal, CountedProcess *found, unsigned room) {
    unsigned count = room;
    OK(((int (*)(void *, unsigned *, CountedProcess *))nvml("nvmlDeviceGetComputeRunningProcesses_v3"))(nvml_device(ordinal), &count, found));
    return count;
}

// Bytes of this process on a device, or -1 if NVML lists it by another process id. With ALONE in the environment, the only process
// that NVML lists is this one.
static long long counted(int ordinal) {
    CountedProcess found[256];
    unsigned count = list_processes(ordinal, found, 256);
    for (unsigned i = 0; i < count; i++)
        if (found[i].pid == (unsigned)getpid()) return (long long)found[i].bytes;
    return count == 0 ? 0 : count == 1 && getenv("ALONE") ? (long long)found[0].bytes : -1;
}

// Bytes of all processes on a device.
static inline long long counted_in_all(int ordinal) {
    CountedProcess found[256];
    long long sum = 0;
    for (unsigned i = 0, count = list_processes(ordinal, found, 256); i < count; i++) sum += (long long)found[i].bytes;
    return sum;
}

static inline void request_snapshot(const char *name) {
    static void (*snapshot)(const char *);
    if (!snapshot) snapshot = (void (*)(const char *))dlsym(RTLD_DEFAULT, "culeak_snapshot");
    if (snapshot) snapshot(name);
}

static int steps;

// On the first device.
static inline void step(const char *name) {
    char label[64];
    snprintf(label, sizeof label, "at_%03d_%s", steps++, name);
    fact(label, (uint64_t)counted(0));
    request_snapshot(label);
}

// With WAIT in the environment, the process stays as it is until its standard input ends or has a line.
static inline void wait_for_reader(void) {
    if (!getenv("WAIT")) return;
    say("READY %d", getpid());
    getchar();
}
