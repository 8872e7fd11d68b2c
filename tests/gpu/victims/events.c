// Many events on many threads: blocks of a domain of the client API, allocated and freed in pairs.
//     events THREADS PAIRS        PAIRS a thread; each thread keeps one block
// The client API is used since CUDA's own calls take longer than a recorder.
#include "../../../shim/include/culeak.h"
#include "victim.h"

#include <pthread.h>

static unsigned long pairs;

static void *work(void *argument) {
    uintptr_t number = (uintptr_t)argument, block = (number + 1) << 32;
    for (unsigned long i = 0; i < pairs; i++) {
        culeak_alloc("events", (void *)block, 512 + number, NULL); // site: events_pair
        culeak_free("events", (void *)block);
    }
    culeak_alloc("events", (void *)block, 1000 + number, NULL); // site: events_kept
    return NULL;
}

int main(int argc, char **argv) {
    enum { MOST = 64 };
    pthread_t all[MOST];
    unsigned long threads = argc > 2 ? strtoul(argv[1], NULL, 10) : 0;
    if (threads < 1 || threads > MOST) {
        fprintf(stderr, "usage: events THREADS PAIRS\n");
        return 96;
    }
    pairs = strtoul(argv[2], NULL, 10);
    for (unsigned long i = 0; i < threads; i++) OK(pthread_create(&all[i], NULL, work, (void *)(uintptr_t)i));
    for (unsigned long i = 0; i < threads; i++) OK(pthread_join(all[i], NULL));
    fact("allocations", threads * (pairs + 1));
    fact("frees", threads * pairs);
    fact("kept_bytes", threads * 1000 + threads * (threads - 1) / 2);
    return 0;
}
