/* Compiled with two values of SIZE: the same instructions at the same addresses, but frames of different size. */
void call(void (*function)(void)) {
    char buffer[SIZE];
    __asm__ volatile("" : : "r"(buffer) : "memory");
    function();
    __asm__ volatile("" : : "r"(buffer) : "memory");
}
