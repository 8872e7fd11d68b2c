/* Another tool with a dlsym hook, of a common kind: libc's own through dlvsym, then a tail call. Counts its calls. */
#define _GNU_SOURCE
#include "oldest_glibc.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *look_up(void *, const char *);
static int seen;

__attribute__((visibility("default"), optimize("O2"))) void *dlsym(void *handle, const char *name) {
    static look_up *real;
    if (!real) real = (look_up *)dlvsym(RTLD_NEXT, "dlsym", OLDEST_GLIBC);
    if (!strncmp(name, "cu", 2)) seen++;
    return real(handle, name);
}

__attribute__((destructor)) static void report(void) { fprintf(stderr, "other preload: %s\n", seen ? "called" : "not called"); }
