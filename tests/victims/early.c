/* A linked library whose constructor runs before those of preloaded libraries.
 *   -DOPENS="\"path\""  it opens a library; `close_early` closes that again
 *   -DCALLS             it calls the runtime */
#include "victim.h"

#ifdef OPENS
static void *opened;

__attribute__((constructor)) static void start(void) {
    opened = dlopen(OPENS, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(opened);
}

__attribute__((visibility("default"))) void close_early(void) { REQUIRE(!dlclose(opened)); }
#endif

#ifdef CALLS
extern int cudaMalloc(void **, size_t);

__attribute__((constructor)) static void start(void) {
    void *address;
    OK(cudaMalloc(&address, 10));
}
#endif
