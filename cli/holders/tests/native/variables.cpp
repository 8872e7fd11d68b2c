// Keeps made-up block addresses in variables of several words. Prints the address, the name of the variable, and what is
// expected of the variable; then waits until its input ends.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <pthread.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

static uint64_t next_block = 0x7a0000000000;

__attribute__((noinline)) static void *block(const char *name) {
    next_block += 0x10000;
    printf("%lx %s\n", (unsigned long)next_block, name);
    return (void *)next_block;
}

namespace app {
struct Cache {
    void *first;
    std::vector<void *> rest;
};
std::map<int, void *> tree;
} // namespace app
std::unordered_map<int, void *> g_hash;
std::list<void *> g_list;
std::deque<void *> g_deque;
static app::Cache g_cache;
void *g_array[8];
// Both refer to the same list, so neither alone keeps it.
std::vector<void *> *g_one, *g_other;
thread_local std::map<int, void *> t_tree;
thread_local void *t_plain;

__attribute__((noinline)) static void fill() {
    for (int i = 0; i < 16; i++) app::tree[i] = block("app::tree");
    for (int i = 0; i < 16; i++) g_hash[i] = block("g_hash");
    for (int i = 0; i < 16; i++) g_list.push_back(block("g_list"));
    for (int i = 0; i < 16; i++) g_deque.push_back(block("g_deque"));
    g_cache.first = block("g_cache");
    for (int i = 0; i < 15; i++) g_cache.rest.push_back(block("g_cache"));
    for (int i = 0; i < 8; i++) g_array[i] = block("g_array");
    g_one = g_other = new std::vector<void *>;
    for (int i = 0; i < 4; i++) g_one->push_back(block("shared"));
}

__attribute__((noinline)) static void fill_thread() {
    for (int i = 0; i < 16; i++) t_tree[i] = block("t_tree");
    t_plain = block("t_plain");
}

__attribute__((noinline)) static void wipe() {
    char space[64 << 10];
    memset(space, 0, sizeof space);
    asm volatile("" : : "r"(space) : "memory");
}

int main() {
    fill();
    volatile bool filled = false;
    std::thread other([&] {
        pthread_setname_np(pthread_self(), "worker");
        fill_thread();
        wipe();
        filled = true;
        pause();
    });
    while (!filled) usleep(1000);
    next_block = 0;
    wipe();
    printf("ready\n");
    fflush(stdout);
    char input;
    while (read(0, &input, 1) > 0) {
    }
    _exit(0);
}
