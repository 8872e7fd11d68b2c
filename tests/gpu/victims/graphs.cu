// Memory of graphs: it is live from launch to free, not from capture.
#include "victim.h"

#include <cuda_runtime.h>

enum { MIB = 1 << 20 };

static uint64_t number(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

static cudaStream_t new_stream(void) {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

// Captures one allocation, and its free on request; returns the graph and the address it will use.
static cudaGraph_t capture(cudaStream_t stream, void **pointer, size_t bytes, bool with_free) {
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMallocAsync(pointer, bytes, stream));
    OK(cudaMemsetAsync(*pointer, 1, bytes, stream));
    if (with_free) OK(cudaFreeAsync(*pointer, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

// A graph that was captured but never launched holds 0 bytes.
CASE(never_launched) {
    void *pointer;
    cudaGraphExec_t exec;
    cudaGraph_t graph = capture(new_stream(), &pointer, MIB, false);
    OK(cudaGraphInstantiate(&exec, graph, 0));
}

// Once launched, its memory is live, with the requested number of bytes.
CASE(launched) {
    void *pointer;
    cudaGraphExec_t exec;
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = capture(stream, &pointer, 3 * MIB, false);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    live("launched", "graph", number(pointer), 3 * MIB, 3 * MIB);
    fact("relaunch", cudaGraphLaunch(exec, stream)); // fails: its memory is still live
}

// A graph that frees on relaunch holds its memory once, however often it ran.
CASE(auto_free) {
    void *pointer;
    cudaGraphExec_t exec;
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = capture(stream, &pointer, 2 * MIB, false);
    OK(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    live("auto_free", "graph", number(pointer), 2 * MIB, 2 * MIB);
}

// Allocated and freed inside the graph: nothing is live after any number of launches.
CASE(freed_by_node) {
    void *pointer;
    cudaGraphExec_t exec;
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = capture(stream, &pointer, 2 * MIB, true);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
}

// Destroying the graph does not free its memory; cudaFree and cudaFreeAsync do.
CASE(outlives_graph) {
    cudaStream_t stream = new_stream();
    void *pointers[3];
    for (int i = 0; i < 3; i++) {
        cudaGraphExec_t exec;
        cudaGraph_t graph = capture(stream, &pointers[i], (i + 1) * MIB, false);
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaStreamSynchronize(stream));
        OK(cudaGraphExecDestroy(exec));
        OK(cudaGraphDestroy(graph));
    }
    OK(cudaFree(pointers[0]));
    OK(cudaFreeAsync(pointers[1], stream));
    OK(cudaStreamSynchronize(stream));
    live("outlives_graph", "graph", number(pointers[2]), 3 * MIB, 3 * MIB);
}

// Nodes added explicitly count like captured ones; a free node in another graph frees.
CASE(explicit_nodes) {
    cudaStream_t stream = new_stream();
    cudaGraph_t allocates, frees;
    cudaGraphNode_t node;
    cudaGraphExec_t exec;
    cudaMemAllocNodeParams kept = {}, freed;
    kept.poolProps.allocType = cudaMemAllocationTypePinned;
    kept.poolProps.location.type = cudaMemLocationTypeDevice;
    kept.bytesize = 2 * MIB;
    freed = kept;
    freed.bytesize = MIB;
    OK(cudaGraphCreate(&allocates, 0));
    OK(cudaGraphAddMemAllocNode(&node, allocates, NULL, 0, &kept));
    OK(cudaGraphAddMemAllocNode(&node, allocates, NULL, 0, &freed));
    OK(cudaGraphInstantiate(&exec, allocates, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphCreate(&frees, 0));
    OK(cudaGraphAddMemFreeNode(&node, frees, NULL, 0, freed.dptr));
    OK(cudaGraphInstantiate(&exec, frees, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    live("explicit_nodes", "graph", number(kept.dptr), 2 * MIB, 2 * MIB);
}

// An allocation made while another stream captures is ordinary memory.
CASE(beside_capture) {
    cudaStream_t capturing = new_stream(), other = new_stream();
    cudaGraph_t graph;
    void *captured, *ordinary;
    OK(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed));
    OK(cudaMallocAsync(&captured, MIB, capturing));
    OK(cudaMallocAsync(&ordinary, 12345, other)); // site: beside_capture
    OK(cudaStreamEndCapture(capturing, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamSynchronize(other));
    live("beside_capture", "async", number(ordinary), 12345, 12345);
}

static const Case cases[] = {
    ENTRY(never_launched), ENTRY(launched), ENTRY(auto_free), ENTRY(freed_by_node), ENTRY(outlives_graph), ENTRY(explicit_nodes),
    ENTRY(beside_capture), {NULL, NULL},
};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
