/* Every allocation call of the CUDA runtime once, with the expected result, one line each.
 *
 * Exit status 0: all as expected, last line `all ok`. 1: a call returned something else; its line begins with FAIL.
 * 77: the runtime refused to start, last line `stopped …`: NVIDIA's cudart does so on the fake driver, see
 * tests/fake_driver/README.md. Built against cudart 12 or 13, shared or static, or the stand-in in
 * tests/fake_driver/runtime; the calls used have the same arguments in all of them. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int failures;

static void expect(int wanted, int got, const char *call) {
    failures += wanted != got;
    printf("%s %s = %d\n", wanted == got ? "ok" : "FAIL", call, got);
}

#define EXPECT(wanted, call) expect(wanted, (int)(call), #call)
#define OK(call) EXPECT(0, call)

enum { MIB = 1 << 20, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, IN_CAPTURE = 900, SPOILT = 901 };

static void linear(void) {
    void *p, *q;
    size_t pitch, free_bytes, total;
    struct cudaPitchedPtr pitched;
    OK(cudaMemGetInfo(&free_bytes, &total));
    OK(cudaMalloc(&p, MIB));
    OK(cudaMemset(p, 1, MIB));
    OK(cudaFree(p));
    EXPECT(INVALID_VALUE, cudaFree(p));
    OK(cudaMalloc(&q, 0));
    EXPECT(1, q == NULL);
    OK(cudaFree(NULL));
    EXPECT(OUT_OF_MEMORY, cudaMalloc(&q, (size_t)64 << 40));
    cudaGetLastError();
    OK(cudaMallocPitch(&p, &pitch, 1000, 10));
    EXPECT(1, pitch >= 1000);
    OK(cudaFree(p));
    OK(cudaMalloc3D(&pitched, (struct cudaExtent){1000, 10, 2}));
    OK(cudaFree(pitched.ptr));
    OK(cudaMallocManaged(&p, MIB, cudaMemAttachGlobal));
    OK(cudaFree(p));
}

static void host(void) {
    void *p;
    OK(cudaMallocHost(&p, MIB));
    OK(cudaFreeHost(p));
    OK(cudaHostAlloc(&p, MIB, cudaHostAllocPortable));
    OK(cudaFreeHost(p));
    EXPECT(INVALID_VALUE, cudaFreeHost(p));
    OK(cudaFreeHost(NULL));
    p = aligned_alloc(4096, MIB);
    OK(cudaHostRegister(p, MIB, 0));
    OK(cudaHostUnregister(p));
    free(p);
}

static void arrays(void) {
    cudaArray_t array;
    cudaMipmappedArray_t mipmap;
    struct cudaChannelFormatDesc channels = {32, 0, 0, 0, cudaChannelFormatKindFloat};
    OK(cudaMallocArray(&array, &channels, 64, 64, 0));
    OK(cudaFreeArray(array));
    OK(cudaMalloc3DArray(&array, &channels, (struct cudaExtent){64, 64, 4}, 0));
    OK(cudaFreeArray(array));
    OK(cudaFreeArray(NULL));
    OK(cudaMallocMipmappedArray(&mipmap, &channels, (struct cudaExtent){64, 64, 0}, 3, 0));
    OK(cudaGetMipmappedArrayLevel(&array, mipmap, 1));
    OK(cudaFreeMipmappedArray(mipmap));
}

static void streams(void) {
    void *p, *q;
    cudaStream_t stream;
    cudaMemPool_t pool, current;
    struct cudaMemPoolProps properties;
    OK(cudaStreamCreate(&stream));
    OK(cudaMallocAsync(&p, MIB, stream));
    OK(cudaFreeAsync(p, stream));
    OK(cudaMallocAsync(&p, MIB, NULL));
    OK(cudaFree(p));
    memset(&properties, 0, sizeof properties);
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    OK(cudaMemPoolCreate(&pool, &properties));
    OK(cudaMallocFromPoolAsync(&p, MIB, pool, stream));
    OK(cudaDeviceSetMemPool(0, pool));
    OK(cudaDeviceGetMemPool(&current, 0));
    EXPECT(1, current == pool);
    OK(cudaMallocAsync(&q, MIB, stream));
    OK(cudaFreeAsync(q, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaMemPoolDestroy(pool));
    OK(cudaFreeAsync(p, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
}

static void graphs(void) {
    void *p, *q;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMallocAsync(&p, MIB, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    EXPECT(INVALID_VALUE, cudaFree(p));
    cudaGetLastError();
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(INVALID_VALUE, cudaGraphLaunch(exec, stream));
    cudaGetLastError();
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(p));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT(IN_CAPTURE, cudaMalloc(&q, MIB));
    EXPECT(SPOILT, cudaStreamEndCapture(stream, &graph));
    cudaGetLastError();
    struct cudaMemAllocNodeParams node_params;
    cudaGraphNode_t node, freed;
    memset(&node_params, 0, sizeof node_params);
    node_params.poolProps.allocType = cudaMemAllocationTypePinned;
    node_params.poolProps.location.type = cudaMemLocationTypeDevice;
    node_params.bytesize = MIB;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemAllocNode(&node, graph, NULL, 0, &node_params));
    OK(cudaGraphAddMemFreeNode(&freed, graph, &node, 1, node_params.dptr));
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceGraphMemTrim(0));
    OK(cudaStreamDestroy(stream));
}

static void sharing(void) {
    void *p;
    cudaIpcMemHandle_t handle;
    OK(cudaMalloc(&p, 2 * MIB));
    OK(cudaIpcGetMemHandle(&handle, p));
    OK(cudaFree(p));
}

static void reset(void) {
    void *linear, *ordered;
    OK(cudaMalloc(&linear, MIB));
    OK(cudaMallocAsync(&ordered, MIB, NULL));
    OK(cudaStreamSynchronize(NULL));
    OK(cudaDeviceReset());
    OK(cudaFree(ordered));
    EXPECT(INVALID_VALUE, cudaFree(linear));
    cudaGetLastError();
    OK(cudaMalloc(&linear, MIB));
    OK(cudaFree(linear));
    OK(cudaDeviceReset());
}

int main(void) {
    int runtime = 0, driver = 0, devices = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaDriverGetVersion(&driver));
    printf("runtime %d driver %d\n", runtime, driver);
    int started = cudaGetDeviceCount(&devices);
    if (started) {
        printf("stopped cudaGetDeviceCount = %d\n", started);
        return 77;
    }
    EXPECT(1, devices > 0);
    linear();
    host();
    arrays();
    streams();
    graphs();
    sharing();
    reset();
    puts(failures ? "FAIL" : "all ok");
    return failures != 0;
}
