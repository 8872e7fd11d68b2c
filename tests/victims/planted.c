/* As planted.py, in C: CASE REQUESTS [fixed]. */
#include "victim.h"

static CUdeviceptr model;

static NOINLINE void load_model(void) {
    OK(cuMemAlloc_v2(&model, 64 << 20));
    STAY();
}

/* The early return forgets the block. */
static NOINLINE int refuse(int request, int fixed) {
    CUdeviceptr scratch;
    OK(cuMemAlloc_v2(&scratch, 1 << 20)); /* leak: early */
    if (request >= 0 && !fixed) return -1;
    OK(cuMemFree_v2(scratch));
    return 0;
}

struct connection {
    CUdeviceptr buffer;
    struct connection *next;
};

static struct connection *connections; /* holder: list */

static NOINLINE void connect_client(int fixed) {
    struct connection *new = calloc(1, sizeof *new);
    OK(cuMemAlloc_v2(&new->buffer, 1 << 20)); /* leak: list */
    if (fixed) {
        OK(cuMemFree_v2(new->buffer));
        free(new);
        return;
    }
    new->next = connections;
    connections = new;
}

int main(int argc, char **argv) {
    int fixed = argc > 3 && !strcmp(argv[3], "fixed");
    REQUIRE(argc > 2);
    start_cuda();
    load_model();
    for (int request = 0; request < atoi(argv[2]); request++)
        if (!strcmp(argv[1], "early"))
            refuse(request, fixed);
        else
            connect_client(fixed);
    return 0;
}
