/* Allocations and frees for a simulator of caches (benches/misses.sh): ROUNDS times LIVE blocks are allocated at the end of a stack
 * of 20 frames and then freed, with FLUSH bytes of other memory read after each event, as a program or a driver does.
 *
 *   misses ROUNDS LIVE FLUSH
 *
 * Linked with a driver that does nothing. */
#include <stdint.h>
#include <stdlib.h>

typedef uint64_t address;
int cuInit(unsigned);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);

static volatile char *other;
static size_t flush;

static void between(void) {
    for (size_t at = 0; at < flush; at += 64) (void)other[at];
}

__attribute__((noinline)) static void nested(int frames, address *block) {
    if (frames > 0) {
        nested(frames - 1, block);
        __asm__ volatile("" ::: "memory");
        return;
    }
    if (*block) {
        cuMemFree_v2(*block);
        *block = 0;
    } else {
        cuMemAlloc_v2(block, 512);
    }
    __asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int rounds = atoi(argv[1]), live = atoi(argv[2]);
    flush = strtoul(argv[3], NULL, 10);
    other = calloc(flush + 1, 1);
    address *blocks = calloc(live, sizeof *blocks);
    cuInit(0);
    for (int round = 0; round < 2 * rounds; round++)
        for (int i = 0; i < live; i++) {
            nested(20, &blocks[i]);
            between();
        }
    return 0;
}
