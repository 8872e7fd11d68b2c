/* A thread that ends inside the function by which PyTorch's allocators inform the profiler. */
#include "victim.h"
#include <pthread.h>

struct device { int8_t type, index; };
extern void report_usage(void *, int64_t, size_t, size_t, struct device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");

static void clean_up(void *nothing) {
    (void)nothing;
    printf("cleaned up\n");
}

static void *ends(void *nothing) {
    pthread_cleanup_push(clean_up, nothing);
    report_usage((void *)0x1000, 1001, 1001, 1001, (struct device){1, 0});
    pthread_cleanup_pop(0);
    return (void *)1;
}

int main(void) {
    start_cuda();
    pthread_t thread;
    void *result;
    REQUIRE(!pthread_create(&thread, NULL, ends, NULL));
    REQUIRE(!pthread_join(thread, &result));
    printf("joined: %d\n", result == NULL);
    return 0;
}
