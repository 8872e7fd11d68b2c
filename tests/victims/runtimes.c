/* A program with several CUDA runtimes. Arguments: plugins, each loaded RTLD_LOCAL with its own runtime. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#ifdef WITH_OWN
extern int use_runtime(size_t);
#endif

int main(int argc, char **argv) {
#ifdef WITH_OWN
    printf("own: %d\n", use_runtime(1));
#endif
    for (int i = 1; i < argc; i++) {
        void *plugin = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (!plugin) {
            printf("%s\n", dlerror());
            return 1;
        }
        int (*use)(size_t) = dlsym(plugin, "use_runtime");
        printf("plugin: %d\n", use(100 * i));
    }
    /* in reverse order, now that all are loaded */
    for (int i = argc - 1; i > 0; i--) {
        void *plugin = dlopen(argv[i], RTLD_NOW | RTLD_NOLOAD);
        int (*use)(size_t) = dlsym(plugin, "use_runtime");
        printf("plugin again: %d\n", use(1000 * i));
    }
    return 0;
}
