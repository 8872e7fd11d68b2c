/* Stands in for PyTorch's libc10: the two functions by which allocators inform the profiler, under their mangled C++
 * names. -DSIGNED_TOTALS: as they were until PyTorch 1.13. -DCOPY=n distinguishes copies.
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

static struct { uint64_t calls, sum, out; } received;

void report_usage(void *block, int64_t change, size_t live, size_t reserved, struct device device) {
#ifdef ENDS_THREAD
    if (change == ENDS_THREAD) pthread_exit(NULL);
#endif
    received.calls++;
    received.sum = received.sum * 31 + (uint64_t)change + live * 3 + reserved * 7 + (uint64_t)(device.type * 256 + device.index) + !block;
}

void report_out_of_memory(int64_t bytes, size_t live, size_t reserved, struct device device) {
    received.out += (uint64_t)bytes + live + reserved + (uint64_t)(device.type * 256 + device.index);
}

/* Prints what a profiler would have received. */
void print_profiler_calls(void) {
    printf("copy %d: %llu calls, %llx, out %llu\n", COPY, (unsigned long long)received.calls, (unsigned long long)received.sum, (unsigned long long)received.out);
}

/* libc10 itself reports CPU memory, through the PLT like everything else. */
void report_cpu_memory(int64_t change) {
    report_usage(&received, change, 0, 0, (struct device){0, -1});
}
