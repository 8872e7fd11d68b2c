/* One leak through every allocation call of the CUDA runtime, each of a different size. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) \
    do { \
        int got = (call); \
        if (got) { \
            printf("%s = %d\n", #call, got); \
            exit(3); \
        } \
    } while (0)

static char page[4096] __attribute__((aligned(4096)));

static __attribute__((noinline)) void leak_everything(void) {
    void *address;
    size_t pitch;
    cudaStream_t stream;
    cudaMemPool_t pool;
    cudaArray_t array;
    cudaMipmappedArray_t mipmap;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    struct cudaPitchedPtr pitched;
    struct cudaMemPoolProps properties;
    struct cudaChannelFormatDesc channels = {32, 0, 0, 0, cudaChannelFormatKindFloat};
    OK(cudaMalloc(&address, 101));
    OK(cudaMallocPitch(&address, &pitch, 100, 2));
    OK(cudaMalloc3D(&pitched, (struct cudaExtent){100, 2, 2}));
    OK(cudaMallocManaged(&address, 102, cudaMemAttachGlobal));
    OK(cudaMallocHost(&address, 103));
    OK(cudaHostAlloc(&address, 104, cudaHostAllocPortable));
    OK(cudaHostRegister(page, sizeof page, 0));
    OK(cudaMallocArray(&array, &channels, 8, 4, 0));
    OK(cudaMalloc3DArray(&array, &channels, (struct cudaExtent){8, 4, 2}, 0));
    OK(cudaMallocMipmappedArray(&mipmap, &channels, (struct cudaExtent){8, 8, 0}, 2, 0));
    OK(cudaStreamCreate(&stream));
    OK(cudaMallocAsync(&address, 105, stream));
    memset(&properties, 0, sizeof properties);
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    OK(cudaMemPoolCreate(&pool, &properties));
    OK(cudaMallocFromPoolAsync(&address, 106, pool, stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMallocAsync(&address, 107, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaMalloc(&address, 108));
    OK(cudaFree(address));
}

int main(void) {
    leak_everything();
    printf("done\n");
    return 0;
}
