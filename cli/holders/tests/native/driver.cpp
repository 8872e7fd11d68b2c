// Plays the CUDA driver: records all blocks in heap memory, in the forms that the real one has. Its handles lead to them.

#include <cstdlib>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

struct Context;
struct Operations {
    void (*functions[4])(Context *);
};
static void internal(Context *) {}
extern const Operations operations = {{internal, internal, internal, internal}};

// The main record of a block.
struct Record {
    void *start, *used, *mapped;
    Record *next;
    Context *context;
};
// Knows some records, and the addresses of all blocks, also of freed ones.
struct Index {
    Record *first, *last;
    std::set<void *> addresses;
};
struct Context {
    const Operations *operations = &::operations;
    std::map<void *, Record *> by_address;
    std::unordered_map<void *, Record> hashed;
    std::vector<void *> all;
    Index *index = new Index{};
};
static std::vector<Context *> contexts;

extern "C" void *driver_open() {
    contexts.push_back(new Context);
    return contexts.back();
}

extern "C" void *driver_stream() { return contexts.back()->index; }

extern "C" void driver_add(void *block) {
    Context *context = contexts.back();
    Record *record = (Record *)malloc(sizeof(Record));
    *record = {block, block, block, context->index->first, context};
    context->index->last = context->index->first;
    context->index->first = record;
    context->index->addresses.insert(block);
    // Of a freed block, whose memory the pool keeps.
    context->index->addresses.insert((char *)block + 0x8000);
    context->by_address[block] = record;
    context->hashed[block] = *record;
    context->all.push_back(block);
}
