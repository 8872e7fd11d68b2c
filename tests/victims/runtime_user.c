/* Code that uses a runtime. Built as a plugin (-DPLUGIN) or as part of the program. */
#include <stddef.h>

extern int cudaMalloc(void **, size_t);
extern int cudaFree(void *);

__attribute__((visibility("default"), noinline)) int use_runtime(size_t keep) {
    void *kept, *given_back;
    int result = cudaMalloc(&kept, keep);
    if (!result) result = cudaMalloc(&given_back, 64);
    if (!result) result = cudaFree(given_back);
    return result;
}
