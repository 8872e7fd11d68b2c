/* A library that a driver is linked with. While it is relocated, before the driver is, it waits until a thread of the
 * program has told the recorder of a block. */
extern volatile int relocates, has_told;

static int answer(void) { return 1; }

static int (*resolve(void))(void) {
    relocates = 1;
    while (!has_told) {}
    return answer;
}

__attribute__((visibility("default"))) int resolved(void) __attribute__((ifunc("resolve")));

__attribute__((visibility("default"))) int calls_resolved(void) { return resolved(); }
