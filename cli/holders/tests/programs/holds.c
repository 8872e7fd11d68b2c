/* Native holders: a global, a chunk behind a global, a thread-local variable, a reference to a Python object. */
#include <stdint.h>
#include <stdlib.h>

struct entry {
    volatile uint64_t tag, block;
};

static void *volatile held_objects[2];
static volatile unsigned held_count;
static volatile uint64_t held_block;
static struct entry *volatile held_chunk;
static __thread volatile uint64_t held_by_thread;
void Py_IncRef(void *);

void hold_object(void *object) {
    Py_IncRef(object);
    held_objects[held_count++ % 2] = object;
}
void hold_block(uint64_t block) { held_block = block; }
static struct entry *entry(uint64_t block) {
    struct entry *made = calloc(1, sizeof *made);
    made->block = block;
    return made;
}
void hold_in_chunk(uint64_t block) { held_chunk = entry(block); }
void hold_in_thread(uint64_t block) { held_by_thread = block; }
void leak_in_chunk(uint64_t block) { entry(block)->tag = 1; }
