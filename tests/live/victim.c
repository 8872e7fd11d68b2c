/* A program for the live view: does one thing per line it reads from the FIFO named by its argument, and says so.
 *
 *   batch N     load_batch asks for N blocks of 2 MiB
 *   free N      gives the last N of them back
 *   staging     staging_buffer asks for 32 MiB of pinned memory
 *   fork        starts itself once more, and that one does the lines that begin with "child "
 *   exit N      ends with this code
 */
#include "../victims/victim.h"
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
    else if (!strncmp(line, "exit", 4))
        exit(number);
    printf("did %s", line);
    fflush(stdout);
}

int main(int argc, char **argv) {
    REQUIRE(argc == 2);
    FILE *lines = fopen(argv[1], "r+");
    REQUIRE(lines);
    start_cuda();
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
