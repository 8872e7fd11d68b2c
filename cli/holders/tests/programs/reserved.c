/* Memory that is mapped into reserved ranges of addresses. Prints its blocks (address, bytes, label, expected class), then "ready", and
 * waits. Range number N begins at RANGE(N). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANGE(number) (((uint64_t)0x7f << 40) + (uint64_t)(number)*0x1000000)

struct arena {
    uint64_t bytes, base;
} *volatile arena;
static volatile uint64_t late, inside;
static volatile struct {
    uint64_t second, none, whole;
} both;

static void block(uint64_t address, const char *label, const char *expected) {
    char line[128];
    int length = snprintf(line, sizeof line, "%llx 4096 %s %s\n", (unsigned long long)address, label, expected);
    if (write(1, line, length) != length) exit(1);
    memset(line, 0, sizeof line);
}

__attribute__((noinline)) static void fill(void) {
    arena = calloc(1, sizeof *arena);
    arena->base = RANGE(0);
    for (int place = 0; place < 3; place++) block(RANGE(0) + place * 4096, place ? "arena" : "arena-first", "Held");
    /* What was mapped at the start is unmapped. */
    late = RANGE(1);
    block(RANGE(1) + 8192, "late", "Held");
    block(RANGE(1) + 65536, "late", "Held");
    inside = RANGE(2) + 8192 + 16;
    block(RANGE(2) + 4096, "beside", "Held");
    block(RANGE(2) + 8192, "inside", "Held");
    block(RANGE(3), "forgotten", "Lost");
    block(RANGE(3) + 4096, "forgotten", "Lost");
    both.whole = RANGE(4);
    both.second = RANGE(4) + 4096;
    block(RANGE(4), "whole", "Held");
    block(RANGE(4) + 4096, "second", "Held");
}

__attribute__((noinline)) static void overwrite_stack(void) {
    volatile char old[65536];
    for (unsigned place = 0; place < sizeof old; place++) old[place] = 0;
}

int main(void) {
    fill();
    overwrite_stack();
    if (write(1, "ready\n", 6) != 6) return 1;
    pause();
    return 0;
}
