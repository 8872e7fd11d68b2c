/* Pointers in memory that is not private and writable. Prints its blocks (address, bytes, label, expected class), then "ready",
 * and waits. The argument is a folder for files. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

static uint64_t *volatile pages[32];
static int count;
static volatile uint64_t hidden;
static struct {
    uint64_t before[512], words[512], after[512];
} frozen __attribute__((aligned(PAGE))) = {.words = {1}};

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

static uint64_t *mapped(int flags, int file) {
    void *page = mmap(0, PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
    if (page == MAP_FAILED) exit(2);
    return page;
}

static uint64_t *anonymous(void) {
    return mapped(MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static uint64_t *shared(void) {
    return mapped(MAP_SHARED | MAP_ANONYMOUS, -1);
}

static uint64_t *kept(uint64_t *page) {
    return pages[count++] = page;
}

static int file(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int opened = open(path, O_RDWR | O_CREAT, 0600);
    if (opened < 0 || ftruncate(opened, 2 * PAGE)) exit(3);
    return opened;
}

static int memory(const char *name) {
    int opened = memfd_create(name, 0);
    if (opened < 0 || ftruncate(opened, PAGE)) exit(4);
    return opened;
}

static void protect(void *page, int access) {
    if (mprotect(page, PAGE, access)) exit(5);
}

__attribute__((noinline)) static void fill(const char *folder) {
    uint64_t *page = kept(anonymous());
    page[5] = block("read-only", "Held");
    protect(page, PROT_READ);

    /* A frozen arena: its first object leads to the second one. */
    page = kept(anonymous());
    page[0] = (uint64_t)&page[200];
    page[201] = block("read-only-chain", "Held");
    protect(page, PROT_READ);

    /* The middle of a large chunk. */
    char *large = malloc(1 << 20);
    kept((uint64_t *)large);
    uint64_t *inside = (uint64_t *)(((uint64_t)large + (1 << 19)) & ~(uint64_t)(PAGE - 1));
    inside[3] = block("read-only-in-chunk", "Held");
    protect(inside, PROT_READ);

    frozen.words[7] = block("read-only-global", "Held");
    protect(frozen.words, PROT_READ);

    page = kept(mapped(MAP_PRIVATE, file(folder, "private")));
    page[7] = block("private-file", "Held");
    page = kept(mapped(MAP_PRIVATE, file(folder, "private-read-only")));
    page[8] = block("private-file-read-only", "Held");
    protect(page, PROT_READ);

    page = kept(shared());
    page[9] = block("shared", "Held");
    page = kept(shared());
    page[9] = block("shared-read-only", "Held");
    protect(page, PROT_READ);
    page = kept(mapped(MAP_SHARED, memory("cache")));
    page[10] = block("memory-file", "Held");
    page = kept(mapped(MAP_SHARED, file(folder, "shared-file")));
    page[11] = block("shared-file", "Held");
    page = kept(mapped(MAP_SHARED, file("/dev/shm", strrchr(folder, '/') + 1)));
    page[12] = block("posix-shared", "Held");
    char path[512];
    snprintf(path, sizeof path, "/dev/shm/%s", strrchr(folder, '/') + 1);
    unlink(path);

    /* Shared memory leads to private memory, and to other shared memory. */
    page = kept(shared());
    uint64_t *chunk = calloc(1, 64);
    chunk[2] = block("behind-shared", "Held");
    page[1] = (uint64_t)chunk;
    uint64_t *next = shared();
    next[4] = block("shared-behind-shared", "Held");
    page[2] = (uint64_t)next;

    /* Nothing leads to this memory. */
    page = shared();
    page[13] = block("unreachable-shared", "Lost");
    hidden = block("forgotten", "Lost") ^ 0x5555555555555555;
}

__attribute__((noinline)) static void overwrite_stack(void) {
    volatile char old[65536];
    for (unsigned place = 0; place < sizeof old; place++) old[place] = 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 9;
    fill(argv[1]);
    overwrite_stack();
    if (write(1, "ready\n", 6) != 6) return 1;
    pause();
    return 0;
}
