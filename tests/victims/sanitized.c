/* For AddressSanitizer: its own heap beside CUDA memory, on several threads. */
#include "victim.h"
#include <pthread.h>

static CUcontext context;

static void *work(void *nothing) {
    (void)nothing;
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 200; i++) {
        char *block = malloc(100 + i);
        memset(block, i, 100 + i);
        OK(cuMemFree_v2(leak(64)));
        free(block);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    context = start_cuda();
    for (int i = 0; i < 4; i++) REQUIRE(!pthread_create(&threads[i], NULL, work, NULL));
    for (int i = 0; i < 4; i++) REQUIRE(!pthread_join(threads[i], NULL));
    leak(100);
    printf("done\n");
    return 0;
}
