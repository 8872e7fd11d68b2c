/* A program without CUDA that loads libraries which use it. Arguments: how, then paths. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what) {
    const char *reason = dlerror();
    printf("%s: %s\n", what, reason ? reason : "no reason");
    return 1;
}

static void *on_thread(void *run) { return (void *)(long)((int (*)(void))run)(); }

/* How many copies of the fake driver are mapped, counted by their first pages. */
static int drivers(void) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found += strstr(line, " 00000000 ") && strstr(line, "fake_driver");
    if (maps) fclose(maps);
    return found;
}

int main(int count, char **arguments) {
    for (int i = 2; i < count; i++) {
        int lazy = !!strstr(arguments[1], "lazy"), namespaced = !!strstr(arguments[1], "namespace");
        int flags = (lazy ? RTLD_LAZY : RTLD_NOW) | RTLD_LOCAL;
        if (strstr(arguments[1], "deepbind")) flags |= RTLD_DEEPBIND;
        void *library = namespaced ? dlmopen(LM_ID_NEWLM, arguments[i], flags) : dlopen(arguments[i], flags);
        if (!library) return fail(arguments[i]);
        int (*run)(void) = dlsym(library, "run_inside");
        if (!run) return fail("run_inside");
        long result = run();
        pthread_t thread;
        if (strstr(arguments[1], "thread")) {
            if (result || pthread_create(&thread, NULL, on_thread, run)) return fail("thread");
            pthread_join(thread, (void **)&result);
        }
        printf("%ld\n", result);
        if (strstr(arguments[1], "closes") && dlclose(library)) return fail("dlclose");
    }
    if (strstr(arguments[1], "counts")) printf("drivers: %d\n", drivers());
    if (dlsym(RTLD_DEFAULT, "no_such_function")) return 2;
    printf("%s\n", dlerror());
    return 0;
}
