// Shared by all victims: checks each call, and prints what stays allocated for the harness.
//
// A victim prints one line for each thing that it keeps,
//     LIVE pid label kind address bytes requested
// and the harness compares these lines with the rows of the snapshot, both ways. The source line of the allocation has the
// comment `// site: label`, from which the harness knows the line number.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
#define CASE(name) extern "C" __attribute__((noinline)) void case_##name(void)
#else
#define CASE(name) __attribute__((noinline)) void case_##name(void)
#endif

// One write per line, so that lines of a forked child and its parent never mix and SIGKILL loses none.
static inline void say(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    if (write(1, line, (size_t)length) != length) _exit(97);
}

static inline void live(const char *label, const char *kind, uint64_t address, uint64_t bytes, uint64_t requested) {
    say("LIVE %d %s %s %#llx %llu %llu", getpid(), label, kind, (unsigned long long)address,
        (unsigned long long)bytes, (unsigned long long)requested);
}

static inline void fact(const char *name, uint64_t value) {
    say("FACT %d %s %#llx", getpid(), name, (unsigned long long)value);
}

static inline void unsupported(const char *what) {
    say("UNSUPPORTED %d %s", getpid(), what);
    exit(0);
}

static inline void failed(const char *call, int error, const char *file, int line) {
    fprintf(stderr, "%s:%d: %s gave error %d\n", file, line, call, error);
    _exit(98);
}

// For the runtime and for the driver alike: 0 is success.
#define OK(call)                                               \
    do {                                                       \
        int error_ = (int)(call);                              \
        if (error_ != 0) failed(#call, error_, __FILE__, __LINE__); \
    } while (0)

typedef struct {
    const char *name;
    void (*run)(void);
} Case;
#define ENTRY(name) {#name, case_##name}

static inline int run_case(const Case *cases, int argc, char **argv) {
    for (const Case *c = cases; argc > 1 && c->name; c++) {
        if (strcmp(c->name, argv[1]) == 0) {
            c->run();
            return argc > 2 ? atoi(argv[2]) : 0;
        }
    }
    fprintf(stderr, "usage: %s CASE [EXIT_CODE], where CASE is one of:", argv[0]);
    for (const Case *c = cases; c->name; c++) fprintf(stderr, " %s", c->name);
    fprintf(stderr, "\n");
    return 96;
}
