// Overwrites the header of a chunk. Prints the addresses of a chunk before it, of that chunk, and of one after it.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

int main() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    char *chunks[100];
    for (auto &chunk : chunks)
        chunk = (char *)calloc(1, 200);
    memset(chunks[49] + 200, 0x55, 8);
    printf("%lx\n%lx\n%lx\nready\n", (unsigned long)chunks[20], (unsigned long)chunks[50], (unsigned long)chunks[80]);
    char input;
    while (read(0, &input, 1) > 0) {
    }
    _exit(0);
}
