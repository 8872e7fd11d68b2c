// Loads each plugin named on its command line, lets it leak, and unloads it. It uses CUDA itself, as hosts of CUDA plugins do.
#include "victim.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

int main(int argc, char **argv) {
    OK(cudaFree(0));
    for (int i = 1; i < argc; i++) {
        void *plugin = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (!plugin) {
            fprintf(stderr, "%s\n", dlerror());
            return 92;
        }
        void *entry = dlsym(plugin, "plugin_entry");
        fact("plugin_at", (uint64_t)(uintptr_t)entry);
        ((void *(*)(void))entry)();
        dlclose(plugin);
        fact("still_loaded", dlopen(argv[i], RTLD_NOW | RTLD_NOLOAD) != NULL);
    }
    return 0;
}
