// A program without CUDA that opens a library which uses it: past_host plain|deepbind|namespace LIBRARY.
#include "victim.h"

#include <dlfcn.h>

int main(int argc, char **argv) {
    if (argc != 3) return 96;
    int flags = RTLD_NOW | RTLD_LOCAL | (strcmp(argv[1], "deepbind") == 0 ? RTLD_DEEPBIND : 0);
    void *library = strcmp(argv[1], "namespace") == 0 ? dlmopen(LM_ID_NEWLM, argv[2], flags) : dlopen(argv[2], flags);
    void (*run)(void) = library ? (void (*)(void))dlsym(library, "run_past") : NULL;
    if (!run) {
        fprintf(stderr, "%s\n", dlerror());
        return 92;
    }
    run();
    return 0;
}
