/* Allocations and frees whose caches hold other data (benches/misses.sh): ROUNDS times LIVE blocks are allocated at the end of a
 * stack of 20 frames and then freed, with FLUSH bytes of other memory read after each event, as a program or a driver does.
 *
 *   misses ROUNDS LIVE FLUSH           for a simulator of caches
 *   misses ROUNDS LIVE FLUSH CODE      also runs CODE bytes of other code after each event. Each round is done bare and recorded, by
 *                                      turns; prints the median times of an allocation and of a free in nanoseconds: two bare, two recorded
 *
 * Linked with a driver that does nothing. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef uint64_t address;
int cuInit(unsigned);
int cuMemAlloc_v2(address *, size_t), plain_cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address), plain_cuMemFree_v2(address);

static volatile char *other;
static size_t flush;
static unsigned char *code;
static size_t code_bytes;

static void between(void) {
    for (size_t at = 0; at < flush; at += 64) (void)other[at];
    /* Every line of the code once; neighbours are in other pages, so that each call needs an address translation too. */
    size_t pages = code_bytes / 4096;
    for (size_t i = 0; i < code_bytes / 64; i++) {
        size_t page = i % pages, line = (i / pages + page) % 64;
        ((void (*)(void))(code + 4096 * page + 64 * line))();
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * time.tv_sec + time.tv_nsec;
}

static double last; /* nanoseconds of the last event */
static int recorded = 1;

__attribute__((noinline)) static void nested(int frames, address *block) {
    if (frames > 0) {
        nested(frames - 1, block);
        __asm__ volatile("" ::: "memory");
        return;
    }
    double started = code_bytes ? now() : 0;
    if (*block) {
        recorded ? cuMemFree_v2(*block) : plain_cuMemFree_v2(*block);
        *block = 0;
    } else {
        recorded ? cuMemAlloc_v2(block, 512) : plain_cuMemAlloc_v2(block, 512);
    }
    if (code_bytes) last = now() - started;
    __asm__ volatile("" ::: "memory");
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5) return 2;
    int rounds = atoi(argv[1]), live = atoi(argv[2]);
    flush = strtoul(argv[3], NULL, 10);
    other = calloc(flush + 1, 1);
    address *blocks = calloc(live, sizeof *blocks);
    if (argc == 5) {
        code_bytes = strtoul(argv[4], NULL, 10) & ~(size_t)4095;
        code = mmap(NULL, code_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(code, 0xc3, code_bytes); /* ret */
        if (code_bytes == 0 || mprotect(code, code_bytes, PROT_READ | PROT_EXEC) != 0) return 1;
    }
    cuInit(0);
    int ways = argc == 5 ? 2 : 1;
    size_t each = (size_t)rounds * live;
    double *times = calloc(2 * ways * each, sizeof *times); /* by way, then of allocations and of frees */
    for (int turn = 0; turn < ways * rounds; turn++) {
        int way = turn % ways;
        recorded = ways == 1 || way == 1;
        for (int part = 0; part < 2; part++)
            for (int i = 0; i < live; i++) {
                nested(20, &blocks[i]);
                times[(2 * way + part) * each + (size_t)(turn / ways) * live + i] = last;
                between();
            }
    }
    for (int part = 0; argc == 5 && part < 4; part++) {
        qsort(times + part * each, each, sizeof *times, ascending);
        printf("%.0f%c", times[part * each + each / 2], part == 3 ? '\n' : ' ');
    }
    return 0;
}
