/* Graph memory is live from a launch until a free, not from a capture. */
#include "victim.h"
#include <pthread.h>
#include <stdatomic.h>

static int has(const char *word) {
    for (char **argument = arguments; *argument; argument++)
        if (!strcmp(*argument, word)) return 1;
    return 0;
}

static CUstream new_stream(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    return stream;
}

/* Captures one allocation of 6,000 bytes, and its free with "freed". */
static CUgraph capture(CUstream stream, CUdeviceptr *address) {
    CUgraph graph;
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    OK(cuMemAllocAsync(address, 6000, stream));
    if (has("freed")) OK(cuMemFreeAsync(*address, stream));
    OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

/* capture [freed] [launch [again]] [auto] [free] [freeasync] [destroy] */
static void captured(void) {
    start_cuda();
    CUstream stream = new_stream();
    CUdeviceptr address;
    CUexec exec;
    CUgraph graph = capture(stream, &address);
    OK(cuGraphInstantiateWithFlags(&exec, graph, has("auto") ? CU_AUTO_FREE_ON_LAUNCH : 0));
    if (has("launch")) OK(cuGraphLaunch(exec, stream));
    if (has("again")) EXPECT(has("auto") || has("freed") ? 0 : 1, cuGraphLaunch(exec, stream));
    if (has("destroy")) {
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
    }
    if (has("free")) OK(cuMemFree_v2(address));
    if (has("freeasync")) OK(cuMemFreeAsync(address, stream));
    if (has("relaunch")) OK(cuGraphLaunch(exec, stream));
}

/* A recapture repeats the nodes of its graph, and the executable may be the old one or a new one.
 * recaptured [freed] [launch] [again] */
static void recaptured(void) {
    start_cuda();
    CUstream stream = new_stream();
    CUdeviceptr address, repeated;
    CUexec exec;
    CUgraph graph = capture(stream, &address), same;
    if (has("launch")) {
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuGraphLaunch(exec, stream));
        if (!has("freed")) OK(cuMemFree_v2(address));
    }
    OK(cuStreamBeginRecaptureToGraph(stream, CU_CAPTURE_RELAXED, graph, NULL, NULL));
    OK(cuMemAllocAsync(&repeated, 6000, stream));
    REQUIRE(repeated == address);
    if (has("freed")) OK(cuMemFreeAsync(repeated, stream));
    OK(cuStreamEndCapture(stream, &same));
    REQUIRE(same == graph);
    if (has("again")) OK(cuGraphLaunch(exec, stream));
}

/* Nodes added explicitly: node | node_v2 | alloc, with the matching free node with "freed". */
static void built(void) {
    start_cuda();
    CUstream stream = new_stream();
    CUgraph graph;
    CUnode node, end;
    CUexec exec;
    CUdeviceptr address;
    CUpoolProps pool = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    OK(cuGraphCreate(&graph, 0));
    if (has("alloc")) {
        CUallocNode params = {.pool = pool, .bytes = 7000};
        OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
        address = params.address;
    } else {
        CUnodeParams params = {.type = CU_NODE_ALLOC};
        params.alloc = (CUallocNode){.pool = pool, .bytes = 7000};
        if (has("node_v2")) OK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
        else OK(cuGraphAddNode(&node, graph, NULL, 0, &params));
        address = params.alloc.address;
    }
    REQUIRE(address != 0);
    if (has("freed")) {
        if (has("alloc")) {
            OK(cuGraphAddMemFreeNode(&end, graph, &node, 1, address));
        } else {
            CUnodeParams params = {.type = CU_NODE_FREE};
            params.free.address = address;
            if (has("node_v2")) OK(cuGraphAddNode_v2(&end, graph, &node, NULL, 1, &params));
            else OK(cuGraphAddNode(&end, graph, &node, 1, &params));
        }
    }
    if (has("params")) {
        CUinstantiateParams params = {.flags = has("auto") ? CU_AUTO_FREE_ON_LAUNCH : 0};
        OK(cuGraphInstantiateWithParams(&exec, graph, &params));
    } else {
        OK(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
    }
    if (has("launch")) OK(cuGraphLaunch(exec, stream));
    if (has("again")) OK(cuGraphLaunch(exec, stream));
}

/* The allocation is in a child graph; memory nodes require that the child graph is moved into its parent.
 * child [freed | parent_frees] [launch] */
static void child(void) {
    start_cuda();
    CUstream stream = new_stream();
    CUgraph parent;
    CUnode node;
    CUexec exec;
    CUdeviceptr address;
    CUgraph graph = capture(stream, &address);
    OK(cuGraphCreate(&parent, 0));
    CUnodeParams params = {.type = CU_NODE_CHILD};
    params.child = (CUchildNode){.graph = graph, .ownership = CU_CHILD_MOVED};
    OK(cuGraphAddNode_v2(&node, parent, NULL, NULL, 0, &params));
    if (has("parent_frees")) {
        CUnode end;
        OK(cuGraphAddMemFreeNode(&end, parent, &node, 1, address));
    }
    OK(cuGraphInstantiateWithFlags(&exec, parent, 0));
    if (has("launch")) OK(cuGraphLaunch(exec, stream));
}

/* Ends the capture of a stream that is not capturing, during another stream's capture. */
static void another_end_fails(void) {
    start_cuda();
    CUstream stream = new_stream(), other = new_stream();
    CUdeviceptr address;
    CUgraph graph;
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    REQUIRE(cuStreamEndCapture(other, &graph) != 0);
    OK(cuMemAllocAsync(&address, 6000, stream));
    OK(cuStreamEndCapture(stream, &graph));
}

enum { BLOCKS = 600 };

/* One graph allocates 600 blocks and then frees them, but every third, in the order of their allocation or backwards.
 * many [backwards] [launch] */
static void many(void) {
    start_cuda();
    CUstream stream = new_stream();
    CUgraph graph;
    CUexec exec;
    CUdeviceptr blocks[BLOCKS];
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    for (int i = 0; i < BLOCKS; i++) OK(cuMemAllocAsync(&blocks[i], 1000, stream));
    for (int i = 0; i < BLOCKS; i++) {
        int block = has("backwards") ? BLOCKS - 1 - i : i;
        if (block % 3) OK(cuMemFreeAsync(blocks[block], stream));
    }
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    if (has("launch")) OK(cuGraphLaunch(exec, stream));
}

enum { LAUNCHERS = 2, LAUNCHES = 20, PAIRS = 4000, KEPT = 100 };

static CUcontext context;
static pthread_barrier_t barrier;
static atomic_int finished;

struct launcher {
    CUstream stream;
    CUexec exec;
};

static void *launch_often(void *given) {
    struct launcher *self = given;
    OK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < LAUNCHES; i++) OK(cuGraphLaunch(self->exec, self->stream));
    atomic_fetch_add(&finished, 1);
    return NULL;
}

/* Allocates and frees 4,000 blocks, and allocates 100 that the next launch frees. */
static struct launcher large(void) {
    struct launcher made = {.stream = new_stream()};
    CUgraph graph;
    CUdeviceptr address;
    OK(cuStreamBeginCapture_v2(made.stream, CU_CAPTURE_RELAXED));
    for (int i = 0; i < PAIRS; i++) {
        OK(cuMemAllocAsync(&address, 512, made.stream));
        OK(cuMemFreeAsync(address, made.stream));
    }
    for (int i = 0; i < KEPT; i++) OK(cuMemAllocAsync(&address, 500, made.stream));
    OK(cuStreamEndCapture(made.stream, &graph));
    OK(cuGraphInstantiateWithFlags(&made.exec, graph, CU_AUTO_FREE_ON_LAUNCH));
    return made;
}

/* Two threads launch large graphs. Meanwhile this one launches a graph that allocates a block and another that frees it. */
static void at_once(void) {
    context = start_cuda();
    struct launcher launchers[LAUNCHERS];
    pthread_t threads[LAUNCHERS];
    for (int i = 0; i < LAUNCHERS; i++) launchers[i] = large();
    CUstream stream = new_stream();
    CUgraph graph;
    CUexec allocates, frees;
    CUdeviceptr address;
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    OK(cuMemAllocAsync(&address, 6000, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&allocates, graph, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    OK(cuMemFreeAsync(address, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&frees, graph, 0));

    pthread_barrier_init(&barrier, NULL, LAUNCHERS + 1);
    for (int i = 0; i < LAUNCHERS; i++) REQUIRE(!pthread_create(&threads[i], NULL, launch_often, &launchers[i]));
    pthread_barrier_wait(&barrier);
    int rounds = 0;
    do {
        OK(cuGraphLaunch(allocates, stream));
        OK(cuGraphLaunch(frees, stream));
        rounds++;
    } while (atomic_load(&finished) < LAUNCHERS);
    for (int i = 0; i < LAUNCHERS; i++) REQUIRE(!pthread_join(threads[i], NULL));
    printf("rounds %d\n", rounds);
}

MAIN(BEHAVIOUR(captured), BEHAVIOUR(recaptured), BEHAVIOUR(built), BEHAVIOUR(child), BEHAVIOUR(another_end_fails), BEHAVIOUR(many),
     BEHAVIOUR(at_once))
