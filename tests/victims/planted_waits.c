/* Holds a block in a global variable, and allocates another one for each line of its input. */
#include "victim.h"

/* Visible to others, so that the compiler keeps it. */
CUdeviceptr kept;

static NOINLINE CUdeviceptr request(void) {
    CUdeviceptr block;
    OK(cuMemAlloc_v2(&block, 1 << 20));
    STAY();
    return block;
}

int main(void) {
    char line[64];
    start_cuda();
    kept = request();
    printf("READY %d\n", getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && !strstr(line, "quit")) {
        request();
        printf("grown\n");
        fflush(stdout);
    }
    return 0;
}
