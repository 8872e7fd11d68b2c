// Objects like those of PyTorch, held as PyTorch holds them. Prints a line for each block: address in hexadecimal, bytes, and
// `held` with the name of the global that holds it, or `lost`; then "ready".
//
// Compiled with -DALLOCATOR it is the library of the caching allocator. -DSHARED: nodes of autograd's graph have shared
// pointers, as in older versions, and not counts of their own.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace c10 {

// What a library or a storage has of a block. In the memory of a std::unique_ptr, the function that frees comes first in libstdc++
// and last in libc++.
struct DataPtr {
    void *data = nullptr;
#ifdef SHARED
    void *context = nullptr;
    void (*free)(void *) = nullptr;
#else
    void (*free)(void *) = nullptr;
    void *context = nullptr;
#endif
    long device = 0;
};

DataPtr allocate(size_t bytes);

// A program reaches the allocator in several ways.
extern void *allocator;

} // namespace c10

#ifdef ALLOCATOR

namespace c10 {

struct Block {
    int device = 0;
    void *stream = nullptr;
    uint64_t stream_uses[7] = {};
    size_t size = 0, requested = 0;
    void *pool = nullptr, *ptr = nullptr;
    bool is_allocated = true;
    Block *prev = nullptr, *next = nullptr;
    int events = 0;
    long since = 0;
};

struct Allocator {
    std::unordered_map<void *, Block *> blocks;
    Block *last = nullptr;
    uint64_t next = 0x5e0000000000;
};

Allocator the_allocator;
void *allocator = &the_allocator;

static void free_block(void *block) { static_cast<Allocator *>(allocator)->blocks[block]->is_allocated = false; }

DataPtr allocate(size_t bytes) {
    if (allocator == &the_allocator)
        allocator = new Allocator();
    auto *own = static_cast<Allocator *>(allocator);
    auto *block = new Block();
    block->requested = bytes;
    block->size = (bytes + 511) / 512 * 512;
    block->pool = own;
    block->ptr = reinterpret_cast<void *>(own->next);
    own->next += block->size;
    block->prev = own->last;
    if (own->last)
        own->last->next = block;
    own->last = own->blocks[block->ptr] = block;
    DataPtr data;
    data.data = data.context = block->ptr;
    data.free = free_block;
    return data;
}

} // namespace c10

#else

// An owning pointer to an object that contains its count.
template <class T> struct Owner {
    T *object = nullptr;
    Owner() = default;
    explicit Owner(T *of) : object(of) { ++object->count; }
    Owner(const Owner &other) : object(other.object) {
        if (object)
            ++object->count;
    }
    Owner &operator=(Owner other) {
        std::swap(object, other.object);
        return *this;
    }
    ~Owner() {
        if (object && --object->count == 0)
            delete object;
    }
    T *operator->() const { return object; }
};

// The numbers of owners, and of weak pointers.
struct Counted {
    virtual ~Counted() = default;
    uint32_t count = 0, weak = 1;
};

namespace c10 {

struct StorageImpl : Counted {
    DataPtr data;
    explicit StorageImpl(DataPtr of) : data(of) {}
};

struct AutogradMetaInterface {
    virtual ~AutogradMetaInterface() = default;
};

struct TensorImpl : Counted {
    Owner<StorageImpl> storage;
    std::unique_ptr<AutogradMetaInterface> meta;
    // The unused ones are uninitialised.
    const void *sizes[10];
};

} // namespace c10

using Tensor = Owner<c10::TensorImpl>;

namespace torch::autograd {

struct Node;
#ifdef SHARED
using NodePtr = std::shared_ptr<Node>;
struct Base : std::enable_shared_from_this<Node> {
    virtual ~Base() = default;
};
#else
using NodePtr = Owner<Node>;
using Base = Counted;
#endif

struct Edge {
    NodePtr node;
    uint32_t input = 0;
};

struct Node : Base {
    std::vector<Edge> next;
    // Of variables that were saved; the unused ones are uninitialised.
    const void *scratch[8] = {};
};

namespace generated {
struct MulBackward0 : Node {};
struct ExpBackward0 : Node {
    Tensor result;
};
// Where ExpBackward0 has a tensor, this class has memory that it does not use.
struct CloneBackward0 : Node {
    const void *unused = nullptr;
};
} // namespace generated

struct AccumulateGrad : Node {
    Tensor variable;
};

struct AutogradMeta : c10::AutogradMetaInterface {
    Tensor grad;
    NodePtr grad_fn;
#ifdef SHARED
    std::weak_ptr<Node> accumulator;
#endif
};

} // namespace torch::autograd

using namespace torch::autograd;

static NodePtr own(Node *node) { return NodePtr(node); }

static Node *at(const NodePtr &node) { return &*node.operator->(); }

// What a stale pointer to a node looks like: the words of a pointer that owns it.
static void leave_pointer(const void **scratch, const NodePtr &node) {
    auto *words = reinterpret_cast<const void *const *>(&node);
    for (size_t word = 0; word < sizeof node / 8; word++)
        scratch[word] = words[word];
}

static Tensor tensor(const char *expected) {
    size_t bytes = 1024 + 512 * (rand() % 64);
    auto data = c10::allocate(bytes);
    printf("%lx %zu %s\n", (long)data.data, bytes, expected);
    Tensor made(new c10::TensorImpl());
    made->storage = Owner<c10::StorageImpl>(new c10::StorageImpl(data));
    return made;
}

static NodePtr after(const NodePtr &node) {
    auto *mul = new generated::MulBackward0();
    mul->next.push_back({node, 0});
    return own(mul);
}

// A tensor whose graph has a leaf.
static Tensor graph(const char *expected, int steps, std::vector<NodePtr> &nodes, const Tensor &leaf) {
    auto *leaf_node = new AccumulateGrad();
    leaf_node->variable = leaf;
    nodes.push_back(own(leaf_node));
    while (steps-- > 0)
        nodes.push_back(after(nodes.back()));
    Tensor made = tensor(expected);
    auto meta = std::make_unique<AutogradMeta>();
    meta->grad_fn = nodes.back();
    made->meta = std::move(meta);
    return made;
}

static Tensor with_grad(const char *expected) {
    Tensor made = tensor(expected);
    auto meta = std::make_unique<AutogradMeta>();
    meta->grad = tensor(expected);
    made->meta = std::move(meta);
    return made;
}

// Nodes that keep their results, and one that has a stale pointer at the same offset.
static Tensor saving(const char *expected, const Tensor &stale) {
    auto *clone = new generated::CloneBackward0();
    clone->unused = stale.object;
    NodePtr last = own(clone);
    for (int step = 0; step < 4; step++) {
        auto *exp = new generated::ExpBackward0();
        exp->result = tensor(expected);
        exp->next.push_back({last, 0});
        last = own(exp);
    }
    Tensor made = tensor(expected);
    auto meta = std::make_unique<AutogradMeta>();
    meta->grad_fn = last;
    made->meta = std::move(meta);
    return made;
}

struct Saved {
    long number = 1;
    Tensor tensor;
};

// A tensor whose gradient has a graph that leads back to it. Two nodes of the graph share what they have saved.
static Tensor circle(const char *expected) {
    Tensor made = tensor(expected), gradient = tensor(expected);
    auto *leaf_node = new AccumulateGrad();
    leaf_node->variable = made;
    auto of_gradient = std::make_unique<AutogradMeta>();
    of_gradient->grad_fn = after(own(leaf_node));
    leaf_node->scratch[0] = at(of_gradient->grad_fn)->scratch[0] = new Saved{1, tensor(expected)};
    gradient->meta = std::move(of_gradient);
    auto meta = std::make_unique<AutogradMeta>();
    meta->grad = gradient;
    made->meta = std::move(meta);
    return made;
}

// ---- what the program holds ----

Tensor *circular, *with_gradient, *saving_graph;
std::vector<Tensor> *all_leaves;
Tensor *long_graph, *other_graph, *shared_graph, *second_holder;
c10::DataPtr workspace;
struct Workspaces {
    long number = 1;
    c10::DataPtr of_one;
} *workspaces;
std::vector<c10::DataPtr> *buffers;
struct Raw {
    long number = 1;
    void *memory;
    long more[4] = {};
} *raw;
void *to_allocator;

static c10::DataPtr block(const char *expected, size_t bytes) {
    auto data = c10::allocate(bytes);
    printf("%lx %zu %s\n", (long)data.data, bytes, expected);
    return data;
}

__attribute__((noinline)) static void hold() {
    std::vector<NodePtr> of_long, of_other, of_shared;
    {
        Tensor leaf = tensor("held long_graph");
        long_graph = new Tensor(graph("held long_graph", 60, of_long, leaf));
        Tensor shared = tensor("held second_holder");
        second_holder = new Tensor(shared);
        shared_graph = new Tensor(graph("held shared_graph", 3, of_shared, shared));
        Tensor of_leaf = tensor("held other_graph");
        other_graph = new Tensor(graph("held other_graph", 5, of_other, of_leaf));
        // Stale words: a short way to the middle of the long graph, and others to what only one of the graphs holds.
        leave_pointer(at(of_long[55])->scratch, of_long[12]);
        leave_pointer(at(of_other[3])->scratch, of_long[20]);
        at(of_other[2])->scratch[5] = leaf.object;
        (*other_graph)->sizes[4] = leaf.object;
        (*other_graph)->sizes[5] = leaf->storage.object;
        (*long_graph)->sizes[3] = of_leaf->storage.object;
    }
    all_leaves = new std::vector<Tensor>();
    for (int leaf = 0; leaf < 4; leaf++)
        all_leaves->push_back(with_grad("held all_leaves"));
    circular = new Tensor(circle("held circular"));
    with_gradient = new Tensor(with_grad("held with_gradient"));
    auto *meta = static_cast<AutogradMeta *>((*with_gradient)->meta.get());
    saving_graph = new Tensor(saving("held saving_graph", meta->grad));
    workspace = block("held workspace", 4096);
    workspaces = new Workspaces{1, block("held workspaces", 8192)};
    buffers = new std::vector<c10::DataPtr>{block("held buffers", 1536), block("held buffers", 512), block("held buffers", 700)};
    raw = new Raw{1, block("held raw", 2048).data};
    auto cached = block("lost", 3072);
    cached.free(cached.data);
    cached = block("lost", 6144);
}

#ifdef SHARED
// Parameters after a training: each has a weak pointer to the node that has accumulated its gradient, and the memory of this
// node still has its pointers. A word of other memory leads to one of the parameters.
struct Parameter {
    Tensor data;
    virtual ~Parameter() = default;
};
std::vector<Parameter *> parameters;
struct Words {
    const void *stale[6];
} *words;

__attribute__((noinline)) static void train() {
    for (int number = 0; number < 6; number++) {
        auto *parameter = new Parameter();
        parameter->data = tensor("held parameters");
        auto meta = std::make_unique<AutogradMeta>();
        auto node = std::make_shared<AccumulateGrad>();
        node->variable = parameter->data;
        meta->accumulator = node;
        parameter->data->meta = std::move(meta);
        parameters.push_back(parameter);
    }
    words = new Words{};
    words->stale[3] = parameters[2]->data.object;
}
#endif

// What other functions left on the stack.
__attribute__((noinline)) static void clear_stack() {
    volatile char unused[16384];
    for (size_t place = 0; place < sizeof unused; place++)
        unused[place] = 0;
}

// A thread whose destructor of an object does not return.
struct Slow {
    Tensor tensor;
    ~Slow() {
        Slow *volatile self = this;
        is_running = true;
        while (self)
            pause();
    }
    static inline std::atomic<bool> is_running = false;
};

__attribute__((noinline)) static std::shared_ptr<Slow> make_slow() {
    auto slow = std::make_shared<Slow>();
    slow->tensor = tensor("held destructor");
    return slow;
}

static void destroy() {
    std::thread([] {
        auto slow = make_slow();
        clear_stack();
        slow.reset();
    }).detach();
    while (!Slow::is_running)
        usleep(1000);
}

int main() {
    for (int i = 0; i < 12; i++) {
        static std::vector<Tensor> all;
        all.push_back(tensor("held all"));
    }
    hold();
    destroy();
#ifdef SHARED
    train();
#endif
    to_allocator = c10::allocator;
    clear_stack();
    printf("ready\n");
    fflush(stdout);
    pause();
}

#endif
