/* A block whose address is only in a register of a thread that never waits. Prints its blocks (address, bytes, label, expected
 * class if the process is stopped), then "ready", and waits. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t hidden;
static uint64_t turns;

/* The address is made up and kept nowhere. */
static uint64_t block(const char *label, const char *expected) {
    static uint64_t number;
    uint64_t address = (number += 1) * 0x100000 + ((uint64_t)0x7f << 40);
    char line[128];
    int length = snprintf(line, sizeof line, "%llx 4096 %s %s\n", (unsigned long long)address, label, expected);
    if (write(1, line, length) != length) exit(1);
    memset(line, 0, sizeof line);
    return address;
}

__attribute__((noinline)) static void overwrite_stack(void) {
    volatile char old[65536];
    for (unsigned place = 0; place < sizeof old; place++) old[place] = 0;
}

/* The register is one that functions preserve. */
static void *busy(void *none) {
#if defined __x86_64__
    __asm__ volatile("movq %0, %%rbx\n\tnotq %%rbx\n\t1: incq %1\n\tjmp 1b" : : "m"(hidden), "m"(turns) : "rbx", "memory");
#else
    __asm__ volatile("ldr x19, %0\n\tmvn x19, x19\n\t1: ldr x9, %1\n\tadd x9, x9, 1\n\tstr x9, %1\n\tb 1b"
                     :
                     : "m"(hidden), "m"(turns)
                     : "x19", "x9", "memory");
#endif
    return none;
}

int main(void) {
    pthread_t thread;
    hidden = ~block("register", "Held");
    overwrite_stack();
    pthread_create(&thread, 0, busy, 0);
    while (!*(volatile uint64_t *)&turns) usleep(1000);
    if (write(1, "ready\n", 6) != 6) return 1;
    pause();
    return 0;
}
