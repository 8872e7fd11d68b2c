// An object in memory of an allocator that culeak does not know. Prints its address, a block that it holds, and one behind it.

#include <cstdint>
#include <cstdio>
#include <sys/mman.h>
#include <unistd.h>

struct Object {
    void *unused[10];
    void *block;
    void *more[100];
    void *far;
};
Object *g_object;

int main() {
    char *memory = (char *)mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    g_object = (Object *)(memory + 5000 / 8 * 8);
    g_object->block = (void *)0x7a0000010000;
    g_object->far = (void *)0x7a0000020000;
    printf("%lx\n7a0000010000\n7a0000020000\nready\n", (unsigned long)g_object);
    fflush(stdout);
    char input;
    while (read(0, &input, 1) > 0) {
    }
    _exit(0);
}
