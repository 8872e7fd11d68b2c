// Arrays like those of JAX: each owns a block through objects of C++ classes, and has memory besides, of which earlier owners have
// used a part. Other classes own several blocks.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

namespace {

using Block = void *;

// Without virtual functions: memory without a class for culeak.
struct Memory {
    uint64_t size = 1, flags = 0;
    Block block = nullptr;
    uint64_t rest[3] = {};
};

// Memory that another object may have used before.
struct Event {
    uint64_t words[6] = {1, 2};
};

class RawBuffer {
public:
    virtual ~RawBuffer() = default;
    std::unique_ptr<Memory> memory = std::make_unique<Memory>();
};

class Buffer {
public:
    virtual ~Buffer() = default;
    std::unique_ptr<Event> event = std::make_unique<Event>();
    std::unique_ptr<RawBuffer> raw = std::make_unique<RawBuffer>();
};

struct Wrapper {
    std::unique_ptr<Buffer> buffer = std::make_unique<Buffer>();
    uint64_t client = 1, words[6] = {};
};

class Array {
public:
    virtual ~Array() = default;
    std::unique_ptr<Wrapper> wrapper = std::make_unique<Wrapper>();
};

// As an `absl::InlinedVector` whose elements are in memory of their own.
struct Interned {
    uint64_t unused[2] = {}, sizes = 6 << 1 | 1;
    Memory **elements = static_cast<Memory **>(std::calloc(8, sizeof(Memory *)));
    uint64_t capacity = 8;
};

class Entry {
public:
    virtual ~Entry() = default;
    Interned key;
};

class Cache {
public:
    virtual ~Cache() = default;
    std::vector<Block> blocks;
};

class Table {
public:
    virtual ~Table() = default;
    std::map<uint64_t, Block> blocks;
};

class Layer {
public:
    virtual ~Layer() = default;
    Block weights = nullptr, bias = nullptr;
};

// What a library has besides arrays: words that are no pointers to blocks, and equal some.
class Client {
public:
    virtual ~Client() = default;
    uint64_t *flags = static_cast<uint64_t *>(std::calloc(8, sizeof(uint64_t)));
    uint64_t *sizes = static_cast<uint64_t *>(std::calloc(8, sizeof(uint64_t)));
};

uint64_t word(Block block) { return reinterpret_cast<uint64_t>(block); }

} // namespace

extern "C" {

void *array(Block block) {
    auto *array = new Array;
    array->wrapper->buffer->raw->memory->block = block;
    return array;
}

void stale_in_event(Array *array, Block block, unsigned at) { array->wrapper->buffer->event->words[at] = word(block); }

void stale_in_wrapper(Array *array, Block block) { array->wrapper->words[0] = word(block); }

// Where an array's memory has its own block.
void *client(Block flags, Block sizes) {
    auto *client = new Client;
    client->flags[2] = word(flags);
    client->sizes[2] = word(sizes);
    return client;
}

void *cache(const Block *blocks, unsigned count) {
    auto *cache = new Cache;
    cache->blocks.assign(blocks, blocks + count);
    return cache;
}

// In a large buffer, of which a part is in use.
void stale_in_buffer(Array *array, Block block) {
    auto *buffer = static_cast<volatile Block *>(std::calloc(1 << 17, sizeof(Block)));
    buffer[1000] = block;
    array->wrapper->words[1] = reinterpret_cast<uint64_t>(buffer);
}

void *entry() { return new Entry; }

// Within the vector's capacity, behind its elements.
void stale_in_entry(Array *array, Entry *entry) {
    reinterpret_cast<volatile uint64_t *>(entry->key.elements)[7] =
        reinterpret_cast<uint64_t>(array->wrapper->buffer->raw.get());
}

// In the last word of the chunk, which is larger than the object.
void stale_behind_memory(Array *array, Block block) {
    reinterpret_cast<volatile Block *>(array->wrapper->buffer->raw->memory.get())[6] = block;
}

// Within the vector's capacity, behind its end.
void stale_behind(Cache *cache, Block block) {
    cache->blocks.reserve(cache->blocks.size() + 1);
    const_cast<volatile Block *>(cache->blocks.data())[cache->blocks.size()] = block;
}

void *table(const Block *blocks, unsigned count) {
    auto *table = new Table;
    for (unsigned nth = 0; nth < count; nth++)
        table->blocks[nth] = blocks[nth];
    return table;
}

void *layer(const Block *blocks, unsigned count) {
    auto *layer = new Layer;
    layer->weights = blocks[0];
    layer->bias = count > 1 ? blocks[1] : nullptr;
    return layer;
}

// As an array of Python objects of an extension.
void *vector_of_one(void *object) {
    auto *words = static_cast<void **>(std::calloc(8, sizeof(void *)));
    words[2] = object;
    return words;
}
}
