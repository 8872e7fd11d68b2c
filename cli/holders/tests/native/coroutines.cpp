// Coroutines on stacks that the program made itself. Prints the address of each made-up block and what is expected of it; then
// waits, on the stack of a coroutine if it has an argument, until its input ends.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static uint64_t next_block = 0x7a0000000000;

__attribute__((noinline)) static uint64_t block(const char *expected) {
    next_block += 0x10000;
    printf("%lx %s\n", (unsigned long)next_block, expected);
    return next_block;
}

static const size_t BYTES = 256 << 10;
static ucontext_t scheduler, coroutines[3], *on_heap;
static char static_stack[BYTES] __attribute__((aligned(16)));
// Other code refers to the stacks, too.
static void *stacks[4];
static bool stays;
struct Node {
    Node *next;
    uint64_t held;
};
static Node *chain;

// Functions that have returned when the coroutine waits: what they left on its stack is stale.
__attribute__((noinline)) static void returned(int depth) {
    volatile uint64_t words[64];
    for (auto &word : words) word = 0;
    words[32] = block("lost");
    if (depth > 0) returned(depth - 1);
    asm volatile("" : : "r"(words) : "memory");
}

static void wait_for_end() {
    next_block = 0;
    printf("ready\n");
    fflush(stdout);
    char input;
    while (read(0, &input, 1) > 0) {
    }
    _exit(0);
}

static void work(int number) {
    volatile uint64_t local = block("stack");
    returned(40);
    asm volatile("" : : "r"(&local) : "memory");
    if (stays && number == 3) wait_for_end();
    swapcontext(number < 3 ? &coroutines[number] : on_heap, &scheduler);
    asm volatile("" : : "r"(&local) : "memory");
}

static void start(ucontext_t *context, void *stack, int number) {
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = BYTES;
    context->uc_link = &scheduler;
    makecontext(context, (void (*)())work, 1, number);
    stacks[number] = stack;
    swapcontext(&scheduler, context);
}

__attribute__((noinline)) static void wipe() {
    char space[64 << 10];
    memset(space, 0, sizeof space);
    asm volatile("" : : "r"(space) : "memory");
}

int main(int count, char **) {
    stays = count > 1;
    for (int i = 0; i < 5; i++) chain = new Node{chain, block("global")};
    start(&coroutines[0], calloc(1, BYTES), 0);
    start(&coroutines[1], mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1);
    start(&coroutines[2], static_stack, 2);
    on_heap = (ucontext_t *)calloc(1, sizeof *on_heap);
    volatile uint64_t local = block("stack");
    wipe();
    // In the heap: without a mapping of its own.
    mallopt(M_MMAP_THRESHOLD, 2 * BYTES);
    start(on_heap, calloc(1, BYTES), 3);
    asm volatile("" : : "r"(&local) : "memory");
    wait_for_end();
}
