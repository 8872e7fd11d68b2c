// Three programs in one source: a file of CUDA's that notes blocks for each thread (LOCAL), one that notes them in static memory
// (GLOBAL), and the program, which gives them blocks and keeps one of these.
#include <stdio.h>
#include <stdlib.h>

#ifdef LOCAL
static __thread void **noted;
#else
static void **noted;
#endif

#if defined LOCAL || defined GLOBAL
void note(void *block) {
    static int count;
    if (!noted)
        noted = calloc(4, sizeof *noted);
    noted[2 + count++] = block;
}
#else
#include <dlfcn.h>
void **kept, *inside, *given;

static void give(const char *library, long block) {
    void *file = dlopen(library, RTLD_NOW);
    void (*note)(void *) = (void (*)(void *))dlsym(file, "note");
    note((void *)block);
}

int main(int count, char **libraries) {
    (void)count;
    give(libraries[1], 0x500000000000);
    give(libraries[2], 0x500100000000);
    // This one is kept.
    given = (void *)0x500200000000;
    give(libraries[2], (long)given);
    // Into blocks of a pool of CUDA's: two numbers side by side, and a variable.
    kept = calloc(4, sizeof *kept);
    kept[1] = (void *)(3L << 32 | 0x2149e00);
    inside = (void *)0x302249e00;
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
#endif
