/* A program without Python: prints its blocks (address, bytes, label, expected class), then "ready", and waits. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct list {
    uint64_t tag, block;
    struct list *next;
};

static volatile uint64_t global_block, interior_block, wide_block;
static struct list *volatile list;
static uint64_t *volatile table;
static __thread volatile uint64_t thread_block;
/* As a variable of CUDA's runtime in a program that it is linked statically into. */
static __thread volatile uint64_t libcudart_static_1a2b;

/* Data that the program never writes, beside data that it does: all equal addresses of blocks. */
#define CONSTANT 0x7f0010000000ul
volatile uint64_t initialized[] = {CONSTANT, CONSTANT + 0x100100, 1};

static uint64_t announce_bytes(uint64_t address, uint64_t bytes, const char *label, const char *expected) {
    char line[128];
    int length = snprintf(line, sizeof line, "%llx %llu %s %s\n", (unsigned long long)address, (unsigned long long)bytes, label, expected);
    if (write(1, line, length) != length) exit(1);
    memset(line, 0, sizeof line);
    return address;
}

static uint64_t announce(uint64_t address, const char *label, const char *expected) {
    return announce_bytes(address, 4096, label, expected);
}

/* The address is made up and kept nowhere. */
static uint64_t block(const char *label, const char *expected) {
    static uint64_t number;
    return announce((number += 1) * 0x100000 + ((uint64_t)0x7f << 40), label, expected);
}

static void *sleeper(void *none) {
    volatile uint64_t local = block("thread-stack", "Held");
    thread_block = block("thread-local", "Held");
    libcudart_static_1a2b = block("thread-local-of-runtime", "Lost");
    pause();
    return (void *)(local + (uint64_t)none);
}

__attribute__((noinline)) static void fill(void) {
    global_block = block("global", "Held");
    interior_block = block("interior", "Held") + 256;
    for (int place = 0; place < 10; place++) {
        struct list *made = calloc(1, sizeof *made);
        made->block = block("list", "Held");
        made->next = list;
        list = made;
    }
    table = calloc(1 << 17, 8);
    for (int place = 0; place < 10; place++) table[place * 10000] = block("large-table", "Held");
    /* A struct that nothing points to, one that is freed, and an address that is overwritten. */
    volatile struct list *leaked = calloc(1, sizeof *leaked);
    leaked->block = block("leaked-chunk", "Lost");
    struct list *freed = calloc(1, 4096);
    freed->next = (struct list *)block("freed-chunk", "Lost");
    free(freed);
    block("forgotten", "Lost");
    announce(CONSTANT, "constant", "Lost");
    announce(CONSTANT + 0x100000, "constant-interior", "Lost");
    wide_block = announce_bytes(CONSTANT + 0x80000000, 1 << 30, "wide-interior", "Held") + 0x123458;
    initialized[2] = announce(CONSTANT + 0x200000, "written", "Held");
}

__attribute__((noinline)) static void overwrite_stack(void) {
    volatile char old[65536];
    for (unsigned place = 0; place < sizeof old; place++) old[place] = 0;
}

int main(void) {
    pthread_t thread;
    fill();
    overwrite_stack();
    pthread_create(&thread, 0, sleeper, 0);
    usleep(100000);
    if (write(1, "ready\n", 6) != 6) return 1;
    pause();
    return 0;
}
