/* The pattern of OpenMP's ompt_start_tool: a weak function that forwards to the next definition of its name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

__attribute__((weak, visibility("default"))) void *ompt_start_tool(unsigned version, const char *runtime) {
    void *(*next)(unsigned, const char *) = dlsym(RTLD_NEXT, "ompt_start_tool");
    return next ? next(version, runtime) : NULL;
}
