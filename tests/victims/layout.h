/* Where the requests to the kernel driver have their fields, in bytes: the rows of tests/data/driver-branches.txt down to the
   parameters of memory, in that order. */
#pragma once
#include <stdint.h>
#include <string.h>

enum field {
    ALLOC_NUMBER, FREE_NUMBER, DUPLICATE_NUMBER, HEAP_NUMBER, TRANSFER_NUMBER,
    SHORT_SIZE, SHORT_CLIENT, SHORT_PARENT, SHORT_OBJECT, SHORT_CLASS, SHORT_PARAMETERS, SHORT_STATUS,
    LONG_SIZE, LONG_CLIENT, LONG_PARENT, LONG_OBJECT, LONG_CLASS, LONG_PARAMETERS, LONG_RIGHTS, LONG_STATUS,
    FREE_SIZE, FREE_CLIENT, FREE_PARENT, FREE_OBJECT, FREE_STATUS,
    DUPLICATE_SIZE, DUPLICATE_CLIENT, DUPLICATE_PARENT, DUPLICATE_OBJECT, DUPLICATE_OF_CLIENT, DUPLICATE_OF, DUPLICATE_STATUS,
    HEAP_SIZE, HEAP_FUNCTION, HEAP_STATUS, HEAP_FLAGS, HEAP_ATTRIBUTES,
    TRANSFER_SIZE, TRANSFER_REQUEST, TRANSFER_BYTES, TRANSFER_ARGUMENT,
    MEMORY_SIZE, MEMORY_BYTES, MEMORY_LIMIT,
    FIELDS
};

/* That of driver 580. */
static const unsigned known_layout[FIELDS] = {
    0x2b, 0x29, 0x34, 0x4a, 0xd3,
    32, 0, 4, 8, 12, 16, 28,
    48, 0, 4, 8, 12, 16, 24, 40,
    16, 0, 4, 8, 12,
    28, 0, 4, 8, 12, 16, 24,
    184, 8, 20, 52, 56,
    16, 0, 4, 8,
    128, 64, 88,
};

static inline uint32_t *word_at(void *argument, unsigned offset) { return (uint32_t *)((char *)argument + offset); }
static inline uint64_t *long_at(void *argument, unsigned offset) { return (uint64_t *)((char *)argument + offset); }
