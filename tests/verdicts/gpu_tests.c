/* The program under test of the workflows in docs/ci.md. LEAK=1 adds a call site that forgets its memory. */
#include <stddef.h>
#include <stdlib.h>

int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);

#define NOINLINE __attribute__((noinline))

NOINLINE static int known_cache(void) {
    unsigned long long block;
    return cuMemAlloc_v2(&block, 4 << 20);
}

NOINLINE static int new_leak(void) {
    unsigned long long block;
    return cuMemAlloc_v2(&block, 1 << 20);
}

int main(void) {
    int device, failed;
    void *context;
    failed = cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
             cuCtxSetCurrent(context) || known_cache();
    for (int block = 0; getenv("LEAK") && block < 3; block++) failed |= new_leak();
    return failed;
}
