// A plugin that leaks; compiled twice, with LEAK_BYTES and the function's name given on the command line.
#include "victim.h"

#include <cuda_runtime.h>

extern "C" __attribute__((noinline)) void *PLUGIN_FUNCTION(void) {
    void *pointer;
    OK(cudaMalloc(&pointer, LEAK_BYTES)); // site: plugin
    return pointer;
}

extern "C" void *plugin_entry(void) {
    void *pointer = PLUGIN_FUNCTION();
    live("plugin", "device", (uint64_t)(uintptr_t)pointer, LEAK_BYTES, LEAK_BYTES);
    return pointer;
}
