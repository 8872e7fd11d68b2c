/* A plugin whose constructor waits for a thread that allocates, as a thread pool in a global object does.
 * -DRUNTIME: through cudaMalloc; otherwise through cuMemAlloc_v2. */
#include "victim.h"
#include <pthread.h>

int cudaMalloc(void **address, size_t bytes);

static void *work(void *result) {
#ifdef RUNTIME
    void *address;
    *(int *)result = cudaMalloc(&address, 300);
#else
    CUdeviceptr address;
    start_cuda();
    *(int *)result = cuMemAlloc_v2(&address, 300);
#endif
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    int result = -1;
    REQUIRE(!pthread_create(&thread, NULL, work, &result));
    REQUIRE(!pthread_join(thread, NULL));
    printf("plugin: %d\n", result);
}
