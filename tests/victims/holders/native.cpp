// Native holders, each of one block. With -DHOST_MEMORY the blocks are malloc's and LeakSanitizer classes them; otherwise they are
// GPU memory and culeak does. Prints a line for each: name, bytes, address, class, root, and a text of the path; then waits until
// standard input is closed.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <link.h>
#include <map>
#include <memory>
#include <pthread.h>
#include <queue>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

// A function with a frame that is gone when it returns.
#define PART __attribute__((noinline)) static void

static size_t next_bytes = 10000;

// The compiler must take this memory for used: it removes allocations that nothing reads.
template <typename T> static T *used(T *memory) {
    asm volatile("" : "+r"(memory) : : "memory");
    return memory;
}

#ifdef HOST_MEMORY
extern "C" int __lsan_do_recoverable_leak_check();
static void begin() {}
static char *new_block(size_t bytes) { return (char *)malloc(bytes); }
#else
extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);
}
static void require(bool holds) {
    if (!holds) abort();
}
static void begin() {
    void *context;
    require(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
}
static char *new_block(size_t bytes) {
    uint64_t address;
    require(cuMemAlloc_v2(&address, bytes) == 0);
    return (char *)address;
}
#endif

// A new block, which the caller stores. Sizes differ, by which LeakSanitizer's report names them.
static char *block(const char *name, const char *of, const char *root, const char *text) {
    next_bytes += 16;
    char *made = new_block(next_bytes);
    printf("BLOCK\t%s\t%zu\t%zu\t%s\t%s\t%s\n", name, next_bytes, (size_t)made, of, root, text);
    fflush(stdout);
    return made;
}

// ---- globals ----

char *global_pointer;
static char *volatile file_static;
struct Structure {
    int kind;
    char *blocks[4];
} global_structure;
char *interior_pointer, *tagged_pointer;
char *table_of_pointers[1000];
namespace cache {
char *in_namespace;
}
thread_local char *of_each_thread;

PART hold_in_globals() {
    global_pointer = block("global", "held", "global", "global_pointer");
    file_static = block("static", "held", "global", "file_static");
    global_structure.blocks[2] = block("structure", "held", "global", "global_structure");
    table_of_pointers[777] = block("table", "held", "global", "table_of_pointers");
    cache::in_namespace = block("namespace", "held", "global", "in_namespace");
    interior_pointer = block("interior", "held", "global", "interior_pointer") + 512;
    tagged_pointer = block("tagged", "held", "global", "tagged_pointer") + 1;
    of_each_thread = block("thread-local", "held", "thread_local", "of_each_thread");
}

PART hold_in_static_local() {
    static char *volatile static_local;
    static_local = block("static local", "held", "global", "static_local");
    used(&static_local);
}

// ---- the heap ----

struct Link {
    Link *next = nullptr;
    char *held = nullptr;
};
struct Pool {
    virtual ~Pool() {}
    virtual void fill() {}
    std::vector<char *> blocks;
};
struct BigPool : Pool {
    void fill() override {}
};
// Words that lead into the pool itself: those of a short string, and what the elements of a map refer to.
struct NamedPool : Pool {
    std::map<int, char *> by_key;
    std::string name = "short";
    char *last;
};

Link *global_chain;
std::vector<char *> global_vector;
std::map<int, char *> global_map;
std::unordered_map<std::string, char *> global_hash_map;
std::shared_ptr<Pool> global_shared;
std::unique_ptr<Pool> global_unique;
NamedPool *global_named;
std::function<char *()> global_function;
std::vector<std::vector<char *>> global_nested;
struct Registry {
    static std::vector<char *> members;
};
std::vector<char *> Registry::members;

PART hold_in_heap() {
    for (int length = 0; length < 5; length++) {
        Link *link = new Link;
        link->next = global_chain, global_chain = link;
    }
    global_chain->next->next->held = block("chain", "held", "global", "global_chain");
    global_vector.resize(300);
    global_vector[299] = block("vector", "held", "global", "global_vector");
    for (int key = 0; key < 20; key++) global_map[key] = nullptr;
    global_map[13] = block("map", "held", "global", "global_map");
    for (int key = 0; key < 20; key++) global_hash_map["key " + std::to_string(key)] = nullptr;
    global_hash_map["key 7"] = block("hash map", "held", "global", "global_hash_map");
    global_shared = std::make_shared<BigPool>();
    global_shared->blocks.push_back(block("shared pointer", "held", "global", "global_shared"));
    global_unique = std::make_unique<BigPool>();
    global_unique->blocks.push_back(block("unique pointer", "held", "global", "global_unique|BigPool"));
    // A call leaves the address of the member in memory that is not in use.
    char **left = used((char **)calloc(1, 2000));
    left[100] = (char *)&global_unique->blocks;
    free(used(left));
    global_named = new NamedPool;
    global_named->by_key[1] = block("map in an object", "held", "global", "global_named");
    global_named->last = block("behind a string", "held", "global", "global_named");
    char *captured[4] = {0, 0, block("function", "held", "global", "global_function"), 0};
    std::string large(100, 'x');
    global_function = [=] { return captured[2] + large.size(); };
    memset(captured, 0, sizeof captured);
    global_nested.resize(10);
    global_nested[4].push_back(block("nested vectors", "held", "global", "global_nested"));
    Registry::members.push_back(block("static member", "held", "global", "members"));
}

// Control blocks own what their pointers do not lead to.
struct Whole {
    char *held = nullptr;
    Link part;
    Link *elsewhere = new Link;
};
std::shared_ptr<void> global_guard;
std::shared_ptr<Link> global_part, global_of_elsewhere;

PART hold_in_control_blocks() {
    char *captured = block("captured by a deleter", "held", "global", "global_guard");
    global_guard = std::shared_ptr<void>((void *)1, [captured](void *) { used(captured); });
    std::shared_ptr<Whole> whole(new Whole), other(new Whole, [](Whole *freed) { delete freed; });
    whole->held = block("owner of a part", "held", "global", "global_part");
    global_part = std::shared_ptr<Link>(whole, &whole->part);
    other->held = block("owner of something elsewhere", "held", "global", "global_of_elsewhere");
    global_of_elsewhere = std::shared_ptr<Link>(other, other->elsewhere);
}

// Pointers that are not to the beginning of a structure, and what looks like another structure.
Link *tagged_link;
struct Hooked {
    char *held;
    long number;
    void *hook;
};
void **global_hook;
struct Small {
    char **first = room;
    size_t count = 0;
    char *room[8] = {};
};
Small global_small, *global_small_on_heap;
std::vector<char *> global_shorter;
struct Queue {
    long number = 1;
    std::deque<char *> queue;
};
Queue *global_queue;
std::queue<char *> *global_queued;
struct Members {
    std::vector<int> numbers;
    std::map<int, int> map;
    char *behind;
};
Members *global_members;
// The end of a tree refers to itself, as what the C library keeps of a thread does.
struct alignas(64) Sentinel {
    Sentinel *self[3] = {this, this, this};
    char *held;
    char others[1000];
};
Sentinel *global_sentinel;
struct Counted {
    Counted *next;
    long count;
};
struct Beside {
    Counted *list;
    char *held;
};
Beside *global_beside;

PART fill_a_queue() {
    global_queued = new std::queue<char *>;
    global_queued->push(block("taken out of a queue", "held", "global", "global_queued"));
    for (int number = 0; number < 100; number++) global_queued->push(nullptr);
    global_queued->push(block("left in a queue", "held", "global", "global_queued"));
    global_queued->push(block("the last of a queue", "held", "global", "global_queued"));
    global_queued->pop();
}

PART hold_in_odd_places() {
    tagged_link = new Link;
    tagged_link->held = block("owner with a flag in its address", "held", "global|heap", "");
    tagged_link = (Link *)((uintptr_t)tagged_link | 1);
    auto *hooked = new Hooked;
    hooked->held = block("owner by its last word", "held", "global|heap", "");
    global_hook = &hooked->hook;
    // Eight elements, as long a text.
    global_small.count = 8;
    global_small.room[0] = block("room for few", "held", "global", "global_small");
    global_small_on_heap = new Small;
    global_small_on_heap->count = 8;
    global_small_on_heap->room[0] = block("room for few on the heap", "held", "global", "global_small_on_heap");
    global_shorter.push_back(nullptr);
    global_shorter.push_back(block("behind the end of a vector", "held", "global", "global_shorter"));
    global_shorter.pop_back();
    global_queue = new Queue;
    global_queue->queue.push_back(block("queue in an object", "held", "global", "global_queue"));
    fill_a_queue();
    global_members = new Members;
    for (int key = 0; key < 9; key++) global_members->map[key] = key;
    global_members->behind = block("behind a map", "held", "global|heap", "");
    global_sentinel = new Sentinel;
    global_sentinel->held = block("beside a sentinel", "held", "global|heap", "");
    Counted *last = nullptr, *first = nullptr;
    for (int number = 0; number < 30000; number++) {
        Counted *next = new Counted{nullptr, number % 3};
        (last ? last->next : first) = next, last = next;
    }
    global_beside = new Beside{first, block("beside a long list", "held", "global|heap", "")};
}

// An allocator of its own: memory from mmap, of which malloc knows nothing.
char *arena;

PART hold_in_arena() {
    arena = (char *)mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char **object = (char **)(arena + 4096 * 3 + 160);
    object[2] = block("arena", "held", "global|heap", "");
    // Its address is in the first page, to which the global points.
    *(char ***)(arena + 64) = object;
}

// ---- nothing holds it ----

PART lose() {
    block("lost", "lost", "none", "");
    char **owner = used((char **)calloc(1, 200));
    owner[10] = block("owner lost", "lost", "none", "");
    Link *one = used(new Link), *other = used(new Link);
    one->next = other, other->next = one;
    other->held = block("cycle of structures", "lost", "none", "");
    used(one), used(owner);
    char **freed = used((char **)calloc(1, 3000));
    freed[100] = block("owner freed", "lost", "none", "");
    free(used(freed));
}

// Memory that libstdc++ keeps for exceptions, if malloc has none. Nobody has cleared it.
struct Emergency {
    uint64_t *free, *memory;
    uint64_t bytes;
};

static int find_emergency_memory(dl_phdr_info *file, size_t, void *found) {
    if (!strstr(file->dlpi_name, "libstdc++")) return 0;
    for (int part = 0; part < file->dlpi_phnum; part++) {
        const ElfW(Phdr) &header = file->dlpi_phdr[part];
        if (header.p_type != PT_LOAD || !(header.p_flags & PF_W)) continue;
        char *begin = (char *)file->dlpi_addr + header.p_vaddr, *end = begin + header.p_memsz - sizeof(Emergency);
        for (char *at = begin; at <= end; at += 8) {
            const Emergency &here = *(Emergency *)at;
            if (here.bytes == 0x11c00 && here.free == here.memory) *(uint64_t **)found = here.memory;
        }
    }
    return 0;
}

PART lose_in_emergency_memory() {
    uint64_t *memory = nullptr;
    dl_iterate_phdr(find_emergency_memory, &memory);
    if (!memory) abort();
    memory[100] = (uint64_t)block("in unused memory for exceptions", "lost", "none", "");
}

uint64_t hidden;

PART hide() {
    // Encoded pointers are no pointers, to either tool.
    hidden = ~(uint64_t)block("hidden", "lost", "none", "");
}

// ---- plugins ----

PART plugin(const char *path, const char *name, bool unload, const char *of, const char *root, const char *text) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    auto keep = (void (*)(uint64_t))dlsym(library, "keep_pointer");
    keep((uint64_t)block(name, of, root, text));
    if (unload) dlclose(library);
}

// ---- threads ----

static std::atomic<int> waiting;

static void wait_for_ever() {
    waiting++;
    for (;;) pause();
}

PART holds_on_its_stack() {
    begin();
    char *volatile on_the_stack = block("thread's stack", "held", "stack", "holds_on_its_stack|thread");
    wait_for_ever();
    (void)on_the_stack;
}

PART thread_local_of_another() {
    begin();
    of_each_thread = block("thread-local of another thread", "held", "thread_local|stack", "");
    wait_for_ever();
}

// The stack of a thread in the middle of other memory.
char *around_a_stack;
static constexpr size_t STACK_BYTES = 1 << 20;

static void *waits(void *) {
    wait_for_ever();
    return nullptr;
}

PART hold_beside_a_stack() {
    around_a_stack = (char *)mmap(nullptr, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char **object = (char **)(around_a_stack + 4096 * 3 + 160);
    object[2] = block("arena below a stack", "held", "global|heap", "");
    *(char ***)(around_a_stack + 64) = object;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, around_a_stack + STACK_BYTES, STACK_BYTES);
    if (pthread_create(&thread, &attributes, waits, nullptr)) abort();
}

static ucontext_t own_stack, left_stack;

// Far from the beginning of the stack, to which words of the other one lead.
PART keep_deep(int depth) {
    char frame[1000];
    used(frame);
    if (depth > 0) {
        keep_deep(depth - 1);
        used(frame);
        return;
    }
    char **owner = used((char **)calloc(1, 200));
    owner[10] = block("on a stack of its own", "held", "stack", "thread");
    char **volatile kept = owner;
    owner = nullptr;
    wait_for_ever();
    (void)kept;
}

static void on_its_own_stack() {
    // Nothing but the thread's stack pointer leads here.
    memset(&own_stack, 0, sizeof own_stack);
    memset(&left_stack, 0, sizeof left_stack);
    keep_deep(30);
}

PART changes_its_stack() {
    begin();
    getcontext(&own_stack);
    own_stack.uc_stack.ss_sp = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    own_stack.uc_stack.ss_size = STACK_BYTES;
    makecontext(&own_stack, on_its_own_stack, 0);
    swapcontext(&left_stack, &own_stack);
}

PART clear_stack() {
    char below[1 << 16];
    memset(below, 0, sizeof below);
    asm volatile("" : : "r"(below) : "memory");
}

PART wait_for_questions() {
    char *volatile in_main = block("main's stack", "held", "stack", "wait_for_questions|main|thread");
    clear_stack();
    printf("READY\t%d\n", getpid());
    fflush(stdout);
#ifdef HOST_MEMORY
    __lsan_do_recoverable_leak_check();
#else
    char answer;
    while (read(0, &answer, 1) > 0) {}
#endif
    (void)in_main;
}

int main(int, char **arguments) {
    begin();
    hold_in_globals();
    hold_in_static_local();
    hold_in_heap();
    hold_in_control_blocks();
    hold_in_odd_places();
    hold_in_arena();
    hold_beside_a_stack();
    lose();
#ifndef HOST_MEMORY
    lose_in_emergency_memory();
#endif
    hide();
    plugin(arguments[1], "plugin", false, "held", "global", "held_pointer");
    plugin(arguments[2], "unloaded plugin", true, "lost", "none", "");
    std::thread(holds_on_its_stack).detach();
    std::thread(thread_local_of_another).detach();
    std::thread(changes_its_stack).detach();
    while (waiting < 4) usleep(1000);
    clear_stack();
    wait_for_questions();
    _exit(0);
}
