/* A program for the live view: runs one command per line that it reads from the FIFO in its argument, and prints it.
 *
 *   batch N     load_batch allocates N blocks of 2 MiB
 *   free N      frees the last N of them
 *   staging     staging_buffer allocates 32 MiB of pinned memory
 *   stream      creates a stream
 *   fork        starts a second process, which runs the lines that begin with "child "
 *   small N     allocates N blocks of 512 bytes from 1024 distinct stacks
 *   busy        starts a thread that allocates and frees about ten thousand times a second
 *   exit N      exits with this code
 */
#include "../victims/victim.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 4096 };
static CUdeviceptr batches[MOST];
static int count;

__attribute__((noinline)) static void load_batch(void) {
    OK(cuMemAlloc_v2(&batches[count], 2 << 20));
    count++;
}

__attribute__((noinline)) static void staging_buffer(void) {
    void *buffer;
    OK(cuMemHostAlloc(&buffer, 32 << 20, 0));
}

/* The bits of `way` select which of two functions calls which, so each value has a distinct stack. */
static void left(int way, int depth);

__attribute__((noinline)) static void right(int way, int depth) {
    if (depth == 0) {
        CUdeviceptr block;
        OK(cuMemAlloc_v2(&block, 512));
    } else if (way & 1) {
        right(way >> 1, depth - 1);
        STAY();
    } else {
        left(way >> 1, depth - 1);
        STAY();
    }
}

__attribute__((noinline)) static void left(int way, int depth) {
    if (depth == 0 || way & 1) {
        right(depth == 0 ? 0 : way >> 1, depth == 0 ? 0 : depth - 1);
        STAY();
    } else {
        left(way >> 1, depth - 1);
        STAY();
    }
}

static void *churn(void *context) {
    OK(cuCtxSetCurrent(context));
    for (;;) {
        CUdeviceptr block;
        OK(cuMemAlloc_v2(&block, 512));
        OK(cuMemFree_v2(block));
        usleep(50);
    }
    return NULL;
}

static CUcontext context;

static void obey(char *line) {
    int number = 0;
    sscanf(line, "%*s %d", &number);
    if (!strncmp(line, "batch", 5))
        while (number-- > 0 && count < MOST)
            load_batch();
    else if (!strncmp(line, "free", 4))
        while (number-- > 0 && count > 0)
            OK(cuMemFree_v2(batches[--count]));
    else if (!strncmp(line, "staging", 7))
        staging_buffer();
    else if (!strncmp(line, "stream", 6)) {
        CUstream stream;
        OK(cuStreamCreate(&stream, 0));
    }
    else if (!strncmp(line, "small", 5)) {
        for (int block = 0; block < number; block++)
            left(block & 1023, 10);
    } else if (!strncmp(line, "busy", 4)) {
        pthread_t thread;
        REQUIRE(!pthread_create(&thread, NULL, churn, context));
    } else if (!strncmp(line, "exit", 4))
        exit(number);
    printf("did %s", line);
    fflush(stdout);
}

int main(int argc, char **argv) {
    REQUIRE(argc == 2);
    FILE *lines = fopen(argv[1], "r+");
    REQUIRE(lines);
    context = start_cuda();
    int to_child[2] = {-1, -1};
    char line[256];
    while (fgets(line, sizeof line, lines)) {
        if (!strncmp(line, "fork", 4)) {
            REQUIRE(!pipe(to_child));
            if (fork() == 0) {
                REQUIRE(dup2(to_child[0], 0) == 0);
                close(to_child[1]);
                execl(argv[0], argv[0], "/dev/stdin", NULL);
                _exit(4);
            }
            close(to_child[0]);
        } else if (!strncmp(line, "child ", 6)) {
            REQUIRE(write(to_child[1], line + 6, strlen(line + 6)) > 0);
        } else {
            obey(line);
        }
    }
    return 0;
}
