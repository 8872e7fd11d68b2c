// Native holders of a Python program: globals of a C and C++ library.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" {
// Python objects, each with a counted reference.
void *held_object, *held_list;
struct Structure {
    int kind;
    void *object;
} held_structure[3];

uint64_t held_pointer;
struct Chain {
    Chain *next;
    uint64_t pointer;
} *held_chain;
}

struct Pool {
    virtual ~Pool() {}
    virtual void fill() {}
    std::vector<uint64_t> blocks;
};

std::vector<uint64_t> held_vector;
Pool *held_class;

static std::vector<uint64_t> &static_local() {
    static std::vector<uint64_t> held_static;
    return held_static;
}

extern "C" {
void keep_object(void *object) { held_object = object; }
void keep_list(void *object) { held_list = object; }
void keep_in_structure(void *object) { held_structure[1].object = object; }
void keep_pointer(uint64_t pointer) { held_pointer = pointer; }
void keep_chain(uint64_t pointer) {
    for (int length = 0; length < 3; length++) {
        Chain *link = (Chain *)calloc(1, sizeof *link);
        link->next = held_chain;
        held_chain = link;
    }
    held_chain->next->pointer = pointer;
}
void keep_in_vector(uint64_t pointer) { held_vector.assign(10, 0), held_vector[7] = pointer; }
void keep_in_static(uint64_t pointer) { static_local().push_back(pointer); }
void keep_in_class(uint64_t pointer) {
    held_class = new Pool();
    held_class->blocks.push_back(pointer);
}
void clear_stack() {
    char below[1 << 16];
    memset(below, 0, sizeof below);
    asm volatile("" : : "r"(below) : "memory");
}
}
