/* PyTorch's allocator under a preload that can release its memory for a while (saver.c). Arguments: when to end (awake,
 * asleep, awake_again, freed; asleep_beside_others: with what such a preload does not release), then libc10_cuda, which takes its segments from the runtime. */
#include "victim.h"

typedef struct block block;

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) printf("%s\n", dlerror());
    REQUIRE(found);
    return found;
}

static NOINLINE void captured(void) {
    CUstream stream;
    CUgraph graph;
    CUexec exec;
    CUdeviceptr address;
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    OK(cuMemAllocAsync(&address, 6000, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
}

static NOINLINE void pooled(void) {
    CUpool pool;
    CUpoolProps properties = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    CUdeviceptr address;
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&address, 3000, pool, NULL));
}

static int has_others;

static void until(int phase) {
    void (*region)(int) = find(RTLD_DEFAULT, "saver_region");
    int (*pause_all)(void) = find(RTLD_DEFAULT, "saver_pause"), (*resume_all)(void) = find(RTLD_DEFAULT, "saver_resume");
    void *torch = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    if (!torch) printf("%s\n", dlerror());
    REQUIRE(torch);
    block *(*allocate)(size_t) = find(torch, "stand_in_malloc");
    void (*give_back)(block *) = find(torch, "stand_in_free"), (*empty_cache)(void) = find(torch, "stand_in_empty_cache");
    start_cuda();
    leak(100); /* the program's own, outside the region */
    region(1);
    block *tensor = allocate(1 << 20);
    region(0);
    REQUIRE(tensor);
    if (has_others) captured(), pooled();
    if (phase > 0) OK(pause_all());
    if (phase > 1) OK(resume_all());
    if (phase > 2) {
        give_back(tensor);
        empty_cache();
    }
}

static void awake(void) { until(0); }
static void asleep(void) { until(1); }
static void asleep_beside_others(void) { has_others = 1, until(1); }
static void awake_again(void) { until(2); }
static void freed(void) { until(3); }

MAIN(BEHAVIOUR(awake), BEHAVIOUR(asleep), BEHAVIOUR(asleep_beside_others), BEHAVIOUR(awake_again), BEHAVIOUR(freed))
