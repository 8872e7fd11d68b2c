/* Compiled with two values of SIZE: the same instructions at the same addresses, but frames of different size. */
void call(void (*function)(void)) {
    char buffer[SIZE];
    __asm__ volatile("" : : "r"(buffer) : "memory");
    function();
    __asm__ volatile("" : : "r"(buffer) : "memory");
}

/* On x86-64 its CFA lies in its frame, at an address that the frame pointer leads to, and so does the caller's frame pointer. */
void realigned(void (*function)(void), int size) {
    __attribute__((aligned(64))) char buffer[64];
    char *more = __builtin_alloca(size);
    __asm__ volatile("" : : "r"(buffer), "r"(more) : "memory");
    function();
    __asm__ volatile("" : : "r"(buffer), "r"(more) : "memory");
}
