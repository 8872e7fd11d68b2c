/* An NVML that knows one device, the first of the fake driver, and the processes in its environment variables. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

static unsigned long long number(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    strncpy(version, "580.65.06", length);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    static int only;
    if (strcmp(uuid, "GPU-63756c65-616b-2066-616b-652047505500") != 0) return NOT_FOUND;
    *device = &only;
    return SUCCESS;
}

/* Each time, a line is added to the file NVML_ASKED, if that is set. */
int nvmlDeviceGetCount_v2(unsigned *count) {
    const char *path = getenv("NVML_ASKED");
    FILE *asked = path ? fopen(path, "a") : NULL;
    if (asked) fputs("asked\n", asked), fclose(asked);
    *count = 1;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    static int only;
    *device = &only;
    return index ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
    if (!device || memory->version != (sizeof(Memory) | 2u << 24)) return INVALID;
    memory->total = 80ull << 30;
    memory->reserved = 1 << 20;
    memory->used = number("NVML_USED");
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

typedef struct { const char *group; unsigned long long soft, hard, used; } Limits;

/* Of every control group: NVML_LIMIT and NVML_SOFT_LIMIT, if they are set. */
int nvmlDeviceGetMemoryLimits_v1(void *device, Limits *limits) {
    if (!device || strncmp(limits->group, "/sys/fs/cgroup", 14) != 0) return INVALID;
    limits->hard = getenv("NVML_LIMIT") ? number("NVML_LIMIT") : ~0ull;
    limits->soft = getenv("NVML_SOFT_LIMIT") ? number("NVML_SOFT_LIMIT") : 0;
    return SUCCESS;
}

/* The process NVML_PID, if that is set, and another one. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
    unsigned there = getenv("NVML_PID") ? 2 : 0;
    unsigned room = processes ? *count : 0;
    (void)device;
    *count = there;
    if (room < there) return INSUFFICIENT_SIZE;
    if (there) {
        processes[0] = (Process){number("NVML_PID"), number("NVML_OWN"), ~0u, ~0u};
        processes[1] = (Process){1, 100 << 20, ~0u, ~0u};
    }
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
    (void)device, (void)processes;
    *count = 0;
    return SUCCESS;
}
