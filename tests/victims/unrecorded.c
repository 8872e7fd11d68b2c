/* Stands in for PyTorch's caching allocator in a process that was never recorded: the tables of its live blocks, as PyTorch 2.11 has
 * them, its pools and its statistics. -DALLOCATOR: the library, libc10_cuda.so. Otherwise the program: blocks of two devices, which an
 * array has, each in a segment of 8 MiB with a free block or one that waits for a stream, and a free segment. Prints their number and
 * bytes, then "ready", and waits for the end of its input. -DOTHER_BACKEND: without tables. -DWRONG_SUM=1: reserved is another
 * sum for device 1. -DIDLE: device 1 has no blocks. -DUNCACHED: neither device has any. -DUNUSED: the library's allocator was not initialized; the program opens its argument, such a
 * copy. -DSTORAGES, with -DOTHER_BACKEND or -DUNCACHED: storages of tensors, of which those in `kept` have
 * memory of PyTorch's allocators. -DHOSTILE: lists without an end, which are free blocks (=1), neighbours (=2); or tables with more slots
 * than any program needs (=3). */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES = 67, LONGEST = 8, SEGMENT = 8 << 20 };
struct block {
    int8_t device;
    void *stream;
    uint64_t stream_uses[5];
    uint64_t size, requested;
    void *pool, *at;
    uint8_t allocated, mapped;
    struct block *before, *after;
    uint64_t rest[20];
};
struct entry { int8_t distance; uint64_t address; struct block *block; };
struct table { struct entry *entries; uint64_t last; uint8_t shift, longest; uint16_t none; float load; uint64_t count; };
/* Of a std::set. */
struct node { uint64_t color; struct node *parent, *left, *right; struct block *block; };
struct pool { void *compare; struct node root; };
/* Statistics and pools of one device: the first word of a set's node of its own is not used, and its last is the count. */
struct device { uint64_t other[50]; uint64_t allocated, peak; uint64_t reserved, highest; struct pool pools[2]; };
struct allocator {
    void *virtual_table;
    uint64_t other[543];
    struct table tables[TABLES];
    uint64_t behind[300];
    /* A vector. */
    struct device **devices, **end, **limit;
};
/* c10::StorageImpl, and the virtual table of the class. */
struct storage { void *table; uint32_t owners, weak; uint64_t data; void *deleter; uint64_t context; int8_t kind, device; uint64_t bytes; };

#ifdef ALLOCATOR
void *table[16] __asm__("_ZTVN3c1011StorageImplE");
static struct allocator the;
#ifdef UNUSED
struct allocator *allocator __asm__("_ZN3c104cuda20CUDACachingAllocator9allocatorE");
#else
struct allocator *allocator __asm__("_ZN3c104cuda20CUDACachingAllocator9allocatorE") = &the;
#endif
#else
extern struct allocator *allocator __asm__("_ZN3c104cuda20CUDACachingAllocator9allocatorE");
extern void *table[16] __asm__("_ZTVN3c1011StorageImplE");
uint64_t kept[512];
struct storage *others[16];

static struct storage *storage(uint64_t data, uint64_t bytes, uint64_t context) {
    struct storage *made = calloc(1, sizeof *made);
    *made = (struct storage){table + 2, 1, 1, data, NULL, context, 1, 0, bytes};
    return made;
}

static uint64_t storages(uint64_t *sum) {
    uint64_t count = 0;
    for (int i = 0; i < 30; i++, count++) {
        uint64_t data = 0x7e0000000000u + i * 0x800000u, bytes = 4096 + i, *context = calloc(8, 8);
        /* Of a pluggable allocator; sent to another process; of any other allocator of PyTorch. */
        context[4] = data, context[i % 3 == 0 ? 5 : 6] = i % 3 == 0 ? bytes : data;
        kept[count] = (uint64_t)storage(data, bytes, i % 3 == 2 ? data : (uint64_t)context);
        ((struct storage *)kept[count])->device = i % 2;
        *sum += bytes;
    }
    /* Of another library; not any more in use; of the host; without elements. */
    uint64_t data = 0x7d0000000000u, *context = calloc(8, 8);
    context[2] = data;
    others[0] = storage(data, 1 << 20, 0), others[1] = storage(data, 1 << 20, (uint64_t)context);
    for (int i = 2; i < 5; i++) others[i] = storage(data + i * 4096, 1 << 20, data + i * 4096);
    others[2]->owners = 0, others[3]->kind = 0, others[4]->bytes = 0;
    return count;
}

static void grow(struct table *table, uint64_t slots) {
    struct table old = *table;
    int bits = 0;
    while ((uint64_t)1 << bits < slots) bits++;
    *table = (struct table){calloc(slots + LONGEST, sizeof(struct entry)), slots - 1, (uint8_t)(64 - bits), LONGEST, 0, 0.5f, old.count};
    for (uint64_t i = 0; i < slots + LONGEST; i++) table->entries[i] = (struct entry){-1, 0x1234, (struct block *)old.entries};
    table->entries[slots + LONGEST - 1].distance = 0; /* The mark of the end. */
    for (uint64_t i = 0; old.entries && i < old.last + old.longest; i++)
        if (old.entries[i].distance >= 0) {
            uint64_t at = old.entries[i].address * 0x9E3779B97F4A7C15u >> table->shift;
            while (table->entries[at].distance >= 0) at++;
            table->entries[at] = old.entries[i];
        }
}

/* A pool's set is a tree that leans to one side. */
static void put(struct pool *pool, struct block *block) {
    struct node *node = calloc(1, sizeof *node);
    *node = (struct node){1, &pool->root, NULL, pool->root.parent, block};
    if (pool->root.parent) pool->root.parent->parent = node;
    pool->root.parent = node;
    pool->root.block = (struct block *)((uint64_t)pool->root.block + 1);
}

static struct block *unused(struct device *own, int device, uint64_t address, uint64_t size) {
    struct block *block = calloc(1, sizeof *block);
    *block = (struct block){.device = (int8_t)device, .size = size, .pool = &own->pools[1], .at = (void *)address, .mapped = 1};
    return block;
}

/* The rest of a block's segment. */
static void rest(struct device *own, struct block *block, int waits) {
    struct block *after = unused(own, block->device, (uint64_t)block->at + block->size, SEGMENT - block->size);
    after->pool = block->pool;
    block->after = after;
    after->before = block;
    if (!waits) put(block->pool, after);
    own->reserved += SEGMENT;
}

static void add(int device, uint64_t address, uint64_t requested, int i) {
    struct table *table = &allocator->tables[address / 512 % TABLES];
    if (!table->entries || table->count * 2 > table->last) grow(table, table->entries ? 2 * (table->last + 1) : 4);
    struct block *block = calloc(1, sizeof *block);
    struct device *own = allocator->devices[device];
    *block = (struct block){.device = (int8_t)device, .size = (requested + 511) / 512 * 512, .requested = requested,
                            .pool = &own->pools[requested > 1 << 20], .at = (void *)address, .allocated = 1, .mapped = 1};
    uint64_t at = address * 0x9E3779B97F4A7C15u >> table->shift;
    while (table->entries[at].distance >= 0) at++;
    table->entries[at] = (struct entry){0, address, block};
    table->count++;
    own->allocated += block->size;
    rest(own, block, i % 7 == 0);
}

int main(int argc, char **argv) {
    uint64_t count = 0, bytes = 0;
    if (argc > 1 && !dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) return 1;
    /* What is near the first device is not near the second one. */
    allocator->devices = calloc(2, sizeof *allocator->devices);
    allocator->end = allocator->limit = allocator->devices + 2;
    for (int device = 0; device < 2; device++) allocator->devices[device] = calloc(1, 64 << 10);
#ifndef OTHER_BACKEND
    for (int i = 0; i < TABLES; i++) allocator->tables[i] = (struct table){NULL, 0, 63, 3, 0, 0.5f, 0};
    for (int device = 0; device < 2; device++)
        for (int i = 0; i < 200; i++, count++) {
#ifdef IDLE
            if (device == 1) break;
#endif
#ifdef UNCACHED
            break;
#endif
            uint64_t address = 0x7e0000000000u + device * 0x1000000000u + i * 0x800000u;
            add(device, address, 100 * i + 1 + (i % 10 == 0) * (4 << 20), i);
            kept[count] = address;
        }
    for (int device = 0; device < 2; device++) {
#ifdef UNCACHED
        break;
#endif
        struct device *own = allocator->devices[device];
        put(&own->pools[1], unused(own, device, 0x7f0000000000u + device * 0x1000000000u, (20 + device) << 20));
        own->reserved += (20 + device) << 20;
#ifdef WRONG_SUM
        own->reserved += device == WRONG_SUM;
#endif
    }
#endif
    for (int device = 0; device < 2; device++) bytes += allocator->devices[device]->allocated;
#ifdef STORAGES
    count = storages(&bytes);
#endif
#ifdef HOSTILE
    static uint64_t endless[1 << 14];
    struct pool *pool = &allocator->devices[0]->pools[1];
    struct node *node = pool->root.parent;
    for (int i = 0; i < 1 << 14; i++) endless[i] = (uint64_t)(endless + (i + 1) % (1 << 14));
    if (HOSTILE == 1) node->left = node->right = node, pool->root.block = (struct block *)(1 << 16);
    if (HOSTILE == 2) node->block->after = (struct block *)endless;
    for (int i = 0; i < TABLES && HOSTILE == 3; i++)
        allocator->tables[i] = (struct table){(struct entry *)endless, (1 << 23) - 1, 64 - 23, LONGEST, 0, 0.5f, 1 << 22};
#endif
    printf("%llu %llu\nready\n", (unsigned long long)count, (unsigned long long)bytes);
    fflush(stdout);
    getchar();
    return 0;
}
#endif
