/* Pointers to the end of a block, which are the start of the next one. Prints its blocks (address, bytes, label, expected class),
 * then "ready", and waits. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct span {
    uint64_t begin, end, limit;
} *volatile span, *volatile full, *volatile cursor, *volatile known, *volatile stale;
static uint64_t *volatile array;
static volatile struct { double time; uint64_t block; } timed[4];
/* As a std::vector lays out its members: in heap memory, and in a variable. */
static struct vector {
    uint64_t *begin, *end, *limit;
} *volatile vector;
static volatile struct vector sized;
static volatile uint64_t own;
static uint64_t next = (uint64_t)0x7f << 40;

/* Each block follows the one before it. */
static uint64_t block(const char *label, const char *expected) {
    uint64_t address = next += 4096;
    char line[128];
    int length = snprintf(line, sizeof line, "%llx 4096 %s %s\n", (unsigned long long)address, label, expected);
    if (write(1, line, length) != length) exit(1);
    memset(line, 0, sizeof line);
    return address;
}

static struct span *made(uint64_t begin, uint64_t end, uint64_t limit) {
    struct span *span = calloc(1, sizeof *span);
    *span = (struct span){begin, end, limit};
    return span;
}

__attribute__((noinline)) static void fill(void) {
    next += 1 << 20;
    uint64_t begin = block("span-begin", "Held");
    span = made(begin, block("span-end", "Held"), 0);
    next += 1 << 20;
    begin = block("full-begin", "Held");
    uint64_t end = block("full-end", "Held");
    full = made(begin, end, end);
    next += 1 << 20;
    begin = block("cursor-begin", "Held");
    cursor = made(begin, begin + 100, block("cursor-end", "Held"));
    next += 1 << 20;
    begin = block("known-begin", "Held");
    own = block("known-end", "Held");
    known = made(begin, own, 0);
    next += 1 << 20;
    begin = block("stale-begin", "Held");
    stale = made(begin, block("stale-end", "Held"), 0);
    next += 1 << 20;
    vector = calloc(1, sizeof *vector);
    uint64_t *pointers = calloc(2, 8);
    *vector = (struct vector){pointers, pointers + 2, pointers + 2};
    for (int place = 0; place < 2; place++) pointers[place] = block("vector", "Held");
    next += 1 << 20;
    /* Elements are a pointer and a size. */
    uint64_t *buffers = calloc(6, 8);
    sized.begin = buffers, sized.end = buffers + 6, sized.limit = buffers + 6;
    for (int place = 0; place < 6; place += 2) buffers[place] = block("sized", "Held"), buffers[place + 1] = 4096;
    next += 1 << 20;
    /* A time and a pointer. */
    for (int place = 0; place < 3; place++) timed[place].time = place * 0.1, timed[place].block = block("timed", "Held");
    next += 1 << 20;
    array = calloc(5, 8);
    for (int place = 0; place < 5; place++) array[place] = block("array", "Held");
    next = 0;
}

__attribute__((noinline)) static void overwrite_stack(void) {
    volatile char old[65536];
    for (unsigned place = 0; place < sizeof old; place++) old[place] = 0;
}

int main(void) {
    fill();
    overwrite_stack();
    volatile uint64_t left_on_stack = stale->end;
    if (write(1, "ready\n", 6) != 6) return 1;
    pause();
    return 0;
}
