/* Stands in for PyTorch's libc10: the two functions by which allocators inform the profiler, and those by which a program changes
 * their settings, under their mangled C++ names. -DSIGNED_TOTALS: as they were until PyTorch 1.13. -DCOPY=n distinguishes copies.
 * -DENDS_THREAD=n: a report of n bytes ends the thread. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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

/* The text of a std::string, and its length; a string of the old ABI has it before the text. */
struct string { const char *text; size_t length; };
#define STRING "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
void set_2_10(void *, const struct string *) __asm__("_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig9parseArgsE" STRING);
void set_2_9(const struct string *) __asm__("_ZN3c104cuda20CUDACachingAllocator20setAllocatorSettingsE" STRING);
void set_2_6(char *const *) __asm__("_ZN3c104cuda20CUDACachingAllocator20setAllocatorSettingsERKSs");

void set_2_10(void *config, const struct string *settings) { printf("set %s%s\n", settings->text, config == &received ? "" : " of what?"); }
void set_2_9(const struct string *settings) { printf("set %s\n", settings->text); }
void set_2_6(char *const *settings) { printf("set %s\n", *settings); }

/* As libtorch_python does in these versions. */
void set_settings(int minor, const char *text) {
    struct { size_t length, capacity, references; char text[128]; } old = {strlen(text), 128, 0, ""};
    strcpy(old.text, text);
    char *in_old = old.text;
    const struct string string = {text, strlen(text)};
    if (minor >= 10) set_2_10(&received, &string);
    else if (minor >= 7) set_2_9(&string);
    else set_2_6(&in_old);
}

/* Prints what a profiler would have received. */
void print_profiler_calls(void) {
    printf("copy %d: %llu calls, %llx, out %llu\n", COPY, (unsigned long long)received.calls, (unsigned long long)received.sum, (unsigned long long)received.out);
}

/* libc10 itself reports CPU memory, through the PLT like everything else. */
void report_cpu_memory(int64_t change) {
    report_usage(&received, change, 0, 0, (struct device){0, -1});
}
