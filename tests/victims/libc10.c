/* Stands in for PyTorch's libc10: the two functions by which allocators keep the profiler informed, under the names that
 * a C++ compiler gives them. -DSIGNED_TOTALS: as they were until PyTorch 1.13. -DCOPY=n tells copies apart.
 * -DENDS_THREAD=n: a report of n bytes ends the thread. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef SIGNED_TOTALS
#define TOTALS "ll"
#else
#define TOTALS "mm"
#endif
#ifndef COPY
#define COPY 1
#endif

struct device { int8_t type, index; };

void report_usage(void *, int64_t, size_t, size_t, struct device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvl" TOTALS "NS_6DeviceE");
void report_out_of_memory(int64_t, size_t, size_t, struct device) __asm__("_ZN3c1027reportOutOfMemoryToProfilerEl" TOTALS "NS_6DeviceE");

static struct { uint64_t calls, sum, out; } told;

void report_usage(void *block, int64_t change, size_t live, size_t reserved, struct device device) {
#ifdef ENDS_THREAD
    if (change == ENDS_THREAD) pthread_exit(NULL);
#endif
    told.calls++;
    told.sum = told.sum * 31 + (uint64_t)change + live * 3 + reserved * 7 + (uint64_t)(device.type * 256 + device.index) + !block;
}

void report_out_of_memory(int64_t bytes, size_t live, size_t reserved, struct device device) {
    told.out += (uint64_t)bytes + live + reserved + (uint64_t)(device.type * 256 + device.index);
}

/* What a profiler would have heard. */
void say_what_was_told(void) {
    printf("copy %d: %llu calls, %llx, out %llu\n", COPY, (unsigned long long)told.calls, (unsigned long long)told.sum, (unsigned long long)told.out);
}

/* CPU memory is told by libc10 itself, through the PLT like everything else. */
void tell_of_cpu_memory(int64_t change) {
    report_usage(&told, change, 0, 0, (struct device){0, -1});
}
