// Chains of one to three objects of 24, 40, 56 and 72 bytes whose last words lead to the next one, and in the end to what holds a block. In
// glibc's heap, the last word of such an object is the first one of the chunk behind it, which is stale if the object is smaller.

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../cuda.h"

#define OBJECTS 32

struct holder {
    CUdeviceptr data;
    long zero[2];
};
long *objects[OBJECTS];

int main(void) {
    CUcontext context;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    for (int nth = 0; nth < OBJECTS; nth++) {
        int words = 3 + 2 * (nth % 4);
        long *last = objects[nth] = calloc(words, sizeof(long));
        for (int more = nth % 3; more > 0; more--) {
            long *next = calloc(words, sizeof(long));
            last[words - 1] = (long)next;
            last = next;
        }
        struct holder *holder = calloc(1, sizeof *holder);
        size_t bytes = 65536 + 512 * nth;
        cuMemAlloc_v2(&holder->data, bytes);
        last[words - 1] = (long)holder;
        printf("BLOCK\tobject %d of %d words\t%zu\t%llu\theld\tglobal\tobjects\n", nth, words, bytes, (unsigned long long)holder->data);
    }
    printf("READY %d\n", getpid());
    fflush(stdout);
    while (getchar() != EOF) {
    }
    _exit(0);
}
