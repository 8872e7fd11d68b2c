// Allocates and frees at random on several threads. Writes all allocations of each
// thread in order: address, usable size, and whether it is still in use. What the program itself needs is not in malloc's heaps.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 5 };

struct Piece {
    char *memory;
    size_t bytes;
    int used;
};
static Piece *pieces[THREADS];
static int *live[THREADS], counts[THREADS], rounds;
static pthread_barrier_t begin, done;

static void *work(void *argument) {
    long number = (long)argument;
    Piece *mine = pieces[number];
    int *used = live[number], count = 0, all = 0;
    uint64_t random = 88172645463325252 * (number + 1);
    auto draw = [&random] {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return random;
    };
    // Creating a thread allocates, and so does its first allocation.
    free(malloc(1));
    pthread_barrier_wait(&begin);
    for (int i = 0; i < rounds; i++) {
        if ((count == 0 || draw() % 5 < 3)) {
            size_t shape = draw() % 1000, bytes = shape < 600 ? draw() % 120 : shape < 998 ? draw() % 3000 : draw() % 400000;
            char *memory = (char *)(shape % 10 ? malloc(bytes) : aligned_alloc(64, bytes + 64 & ~63));
            bytes = malloc_usable_size(memory);
            // Its words look like pointers to heap memory.
            for (size_t at = 0; at + 8 <= bytes && at < 4096; at += 8)
                *(char **)(memory + at) = count ? mine[used[draw() % count]].memory + draw() % 64 : memory;
            mine[all] = {memory, bytes, 1};
            used[count++] = all++;
        } else {
            int place = draw() % count;
            free(mine[used[place]].memory);
            mine[used[place]].used = 0;
            used[place] = used[--count];
        }
    }
    counts[number] = all;
    // Threads keep their caches while the test looks at them.
    pthread_barrier_wait(&done);
    if (number)
        for (;;)
            pause();
    return nullptr;
}

static void *mapped(size_t bytes) {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(int, char **arguments) {
    rounds = atoi(arguments[1]);
    pthread_barrier_init(&begin, nullptr, THREADS);
    pthread_barrier_init(&done, nullptr, THREADS);
    for (long i = 0; i < THREADS; i++) {
        pieces[i] = (Piece *)mapped(rounds * sizeof(Piece));
        live[i] = (int *)mapped(rounds * sizeof(int));
    }
    for (long i = 1; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, nullptr, work, (void *)i);
    }
    work(nullptr);
    int out = open(arguments[2], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < counts[i]; k++) {
            Piece &piece = pieces[i][k];
            char line[100];
            int length = snprintf(line, sizeof line, "%lx %lx %d\n", (unsigned long)piece.memory,
                                  (unsigned long)piece.bytes, piece.used);
            if (write(out, line, length) != length)
                return 1;
        }
    if (write(1, "ready\n", 6) != 6)
        return 1;
    char input;
    while (read(0, &input, 1) > 0) {
    }
    _exit(0);
}
