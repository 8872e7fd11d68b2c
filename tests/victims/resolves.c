/* A library that a driver is linked with. While it is relocated, before the driver is, it waits until a thread of the
 * program has registered a block with the recorder. */
extern volatile int relocates, block_registered;

static int answer(void) { return 1; }

static int (*resolve(void))(void) {
    relocates = 1;
    while (!block_registered) {}
    return answer;
}

__attribute__((visibility("default"))) int resolved(void) __attribute__((ifunc("resolve")));

__attribute__((visibility("default"))) int calls_resolved(void) { return resolved(); }
