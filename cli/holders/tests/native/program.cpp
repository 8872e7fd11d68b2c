// Keeps made-up block addresses in every kind of native memory. Prints one line per block: its address, whether something
// holds it, the root and the class of the object that refers to it. Then it waits until its input ends.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <memory>
#include <pthread.h>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>
#include <unistd.h>

static uint64_t next_block = 0x7a0000000000;

// In a register only: a copy on the stack would hold the block.
__attribute__((noinline)) static void *block(const char *expected) {
    next_block += 0x10000;
    printf("%lx %s\n", (unsigned long)next_block, expected);
    return (void *)next_block;
}

struct Node {
    uint64_t padding[3];
    Node *next;
    void *block;
};

struct Base {
    virtual ~Base() {}
};
namespace zoo {
struct Derived : Base {
    void *block = nullptr;
    int numbers[20];
};
} // namespace zoo

// Objects with a handle of the driver are the program's own.
struct Manager {
    void *context;
    Node *nodes;
};
struct Buffer {
    void *context, *block;
};

std::vector<void *> g_vector;
Manager *g_manager;
std::vector<Buffer *> g_buffers;
static std::vector<void *> hidden_vector;
std::unordered_map<int, void *> g_map;
std::shared_ptr<Base> g_shared;
std::unique_ptr<Base> g_object;
Node *g_chain;
void *g_inside;
void *g_dangling[64];
Node *g_of_threads[4];
char *g_mapped, *g_aligned, *g_page_aligned;
Base *g_of_plugin;
void *g_context, *g_stream;
thread_local std::vector<void *> t_vector;
static pthread_key_t key;

static std::vector<void *> &cached() {
    static std::vector<void *> cache;
    return cache;
}

__attribute__((noinline)) static void keep(void *p) { asm volatile("" : : "r"(p) : "memory"); }

static pthread_barrier_t ready;

static volatile bool started;

// A thread that runs, so that its stack pointer is unknown.
static void spins() {
    void *volatile local = block("held stack");
    keep((void *)&local);
    started = true;
    for (;;)
        keep((void *)&local);
}

static void waits(int number) {
    t_vector.push_back(block("held thread-local"));
    pthread_setspecific(key, memset(new Node, 0, sizeof(Node)));
    ((Node *)pthread_getspecific(key))->block = block("held thread-local");
    g_of_threads[number] = new Node{};
    g_of_threads[number]->block = block("held g_of_threads");
    void *volatile local = block("held stack");
    keep((void *)&local);
    pthread_barrier_wait(&ready);
    pause();
    keep((void *)&local);
}

// All blocks that nothing holds are made here, below the frames that remain.
__attribute__((noinline)) static void lose() {
    // Allocated memory that nothing points to.
    Node *first = new Node{}, *second = new Node{};
    first->next = second;
    second->block = block("unreached");
    // Freed memory that still contains the address, to which a global still points: in a thread's cache, in fastbins, and
    // in the larger bins.
    static const size_t sizes[] = {40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 200, 200, 1500, 1500, 5000};
    int count = sizeof sizes / sizeof *sizes;
    std::vector<void *> between;
    for (int i = 0; i < count; i++) {
        char *memory = (char *)malloc(sizes[i]);
        memset(memory, 0, sizes[i]);
        *(void **)(memory + 24) = block("lost");
        g_dangling[i] = memory;
        between.push_back(malloc(32));
    }
    for (int i = 0; i < count; i++)
        free(g_dangling[i]);
    block("lost");
}

__attribute__((noinline)) static void fill() {
    g_vector.push_back(block("held g_vector"));
    hidden_vector.push_back(block("held hidden_vector"));
    for (int i = 0; i < 3; i++)
        g_map[i] = block("held g_map");
    auto shared = std::make_shared<zoo::Derived>();
    shared->block = block("held g_shared zoo::Derived");
    g_shared = shared;
    auto object = std::make_unique<zoo::Derived>();
    object->block = block("held g_object zoo::Derived");
    g_object = std::move(object);
    for (int i = 0; i < 5; i++) {
        Node *node = new Node{};
        node->next = g_chain;
        node->block = block("held g_chain");
        g_chain = node;
    }
    char *inside = (char *)calloc(1, 500);
    *(void **)(inside + 64) = block("held g_inside");
    g_inside = inside + 200;
    cached().push_back(block("held cached()::cache"));
    t_vector.push_back(block("held thread-local"));
    g_mapped = (char *)calloc(1, 1 << 20);
    *(void **)(g_mapped + 600000) = block("held g_mapped");
    g_aligned = (char *)aligned_alloc(64, 1 << 20);
    *(void **)(g_aligned + 4096) = block("held g_aligned");
    g_page_aligned = (char *)aligned_alloc(4096, 1 << 20);
    *(void **)(g_page_aligned + 8192) = block("held g_page_aligned");
    void *plugin = dlopen(PLUGIN, RTLD_NOW);
    auto make = (Base * (*)(void *, void *)) dlsym(plugin, "make");
    g_of_plugin = make(block("held g_of_plugin"), block("unreached"));
    dlclose(plugin);
}

extern "C" void *driver_open();
extern "C" void *driver_stream();
extern "C" void driver_add(void *block);

__attribute__((noinline)) static void use_driver() {
    g_context = driver_open();
    for (int i = 0; i < 100; i++)
        driver_add(block("driver"));
    for (Node *node = g_chain; node; node = node->next)
        driver_add(node->block);
    for (auto &[number, known] : g_map)
        driver_add(known);
    driver_add(g_vector[0]);
    g_stream = driver_stream();
    g_manager = new Manager{g_context, nullptr};
    for (int i = 0; i < 5; i++) {
        g_manager->nodes = new Node{{}, g_manager->nodes, block("held g_manager")};
        driver_add(g_manager->nodes->block);
        g_buffers.push_back(new Buffer{g_context, block("held g_buffers")});
        driver_add(g_buffers.back()->block);
    }
}

// Overwrites what the functions above left on the stack.
__attribute__((noinline)) static void wipe() {
    char space[64 << 10];
    memset(space, 0, sizeof space);
    keep(space);
}

int main() {
    pthread_barrier_init(&ready, nullptr, 5);
    pthread_key_create(&key, nullptr);
    fill();
    use_driver();
    std::vector<std::thread> threads;
    threads.emplace_back([] {
        pthread_setname_np(pthread_self(), "loader");
        spins();
    });
    while (!started)
        usleep(1000);
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([i] {
            pthread_setname_np(pthread_self(), "loader");
            waits(i);
        });
        usleep(1000);
    }
    pthread_barrier_wait(&ready);
    lose();
    next_block = 0;
    wipe();
    printf("ready\n");
    fflush(stdout);
    char input;
    while (read(0, &input, 1) > 0) {
    }
    _exit(0);
}
