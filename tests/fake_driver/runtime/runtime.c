/* A stand-in for cudart, for machines where NVIDIA's cannot start: its calls reach the same driver functions in the same
 * way.
 *
 * What it imitates was measured on driver 580 with cudart 12.9 and 13.5: dlopen("libcuda.so.1"), one dlsym of
 * cuGetProcAddress_v2, every driver function by base name and version, cuInit and the primary context at the first call
 * that needs them; cudaMallocHost reaches cuMemHostAlloc, cudaMallocArray reaches cuArray3DCreate_v2, cudaDeviceReset the
 * old cuDevicePrimaryCtxReset, and so on.
 *
 *   shared:  cc -shared -fPIC -Wl,-soname,libcudart.so.12 -Wl,--version-script,libcudart.map runtime.c -ldl
 *   static:  cc -c -fvisibility=hidden runtime.c, then link the object into the program */
#include "cuda_runtime_api.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } ArrayShape;

/* name, version requested, arguments */
#define DRIVER(X) \
    X(cuInit, 2000, (unsigned)) \
    X(cuDriverGetVersion, 2020, (int *)) \
    X(cuDeviceGetCount, 2000, (int *)) \
    X(cuDevicePrimaryCtxRetain, 7000, (void **, int)) \
    X(cuDevicePrimaryCtxReset, 7000, (int)) \
    X(cuCtxSetCurrent, 4000, (void *)) \
    X(cuCtxGetCurrent, 4000, (void **)) \
    X(cuCtxGetDevice, 2000, (int *)) \
    X(cuCtxSynchronize, 2000, (void)) \
    X(cuMemGetInfo, 3020, (size_t *, size_t *)) \
    X(cuMemsetD8, 3020, (CUdeviceptr, unsigned char, size_t)) \
    X(cuMemAlloc, 3020, (CUdeviceptr *, size_t)) \
    X(cuMemAllocPitch, 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
    X(cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned)) \
    X(cuMemFree, 3020, (CUdeviceptr)) \
    X(cuMemHostAlloc, 2020, (void **, size_t, unsigned)) \
    X(cuMemFreeHost, 2000, (void *)) \
    X(cuMemHostRegister, 6050, (void *, size_t, unsigned)) \
    X(cuMemHostUnregister, 4000, (void *)) \
    X(cuArray3DCreate, 3020, (cudaArray_t *, const ArrayShape *)) \
    X(cuArrayDestroy, 2000, (cudaArray_t)) \
    X(cuMipmappedArrayCreate, 5000, (cudaMipmappedArray_t *, const ArrayShape *, unsigned)) \
    X(cuMipmappedArrayGetLevel, 5000, (cudaArray_t *, cudaMipmappedArray_t, unsigned)) \
    X(cuMipmappedArrayDestroy, 5000, (cudaMipmappedArray_t)) \
    X(cuStreamCreate, 2000, (cudaStream_t *, unsigned)) \
    X(cuStreamDestroy, 4000, (cudaStream_t)) \
    X(cuStreamSynchronize, 2000, (cudaStream_t)) \
    X(cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, cudaStream_t)) \
    X(cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *, size_t, cudaMemPool_t, cudaStream_t)) \
    X(cuMemFreeAsync, 11020, (CUdeviceptr, cudaStream_t)) \
    X(cuMemPoolCreate, 11020, (cudaMemPool_t *, const struct cudaMemPoolProps *)) \
    X(cuMemPoolDestroy, 11020, (cudaMemPool_t)) \
    X(cuMemPoolTrimTo, 11020, (cudaMemPool_t, size_t)) \
    X(cuDeviceSetMemPool, 11020, (int, cudaMemPool_t)) \
    X(cuDeviceGetMemPool, 11020, (cudaMemPool_t *, int)) \
    X(cuStreamBeginCapture, 10010, (cudaStream_t, int)) \
    X(cuStreamEndCapture, 10000, (cudaStream_t, cudaGraph_t *)) \
    X(cuGraphCreate, 10000, (cudaGraph_t *, unsigned)) \
    X(cuGraphDestroy, 10000, (cudaGraph_t)) \
    X(cuGraphInstantiateWithFlags, 11040, (cudaGraphExec_t *, cudaGraph_t, unsigned long long)) \
    X(cuGraphLaunch, 10000, (cudaGraphExec_t, cudaStream_t)) \
    X(cuGraphExecDestroy, 10000, (cudaGraphExec_t)) \
    X(cuGraphAddMemAllocNode, 11040, (cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t, struct cudaMemAllocNodeParams *)) \
    X(cuGraphAddMemFreeNode, 11040, (cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t, CUdeviceptr)) \
    X(cuDeviceGraphMemTrim, 11040, (int)) \
    X(cuIpcGetMemHandle, 4010, (cudaIpcMemHandle_t *, CUdeviceptr)) \
    X(cuIpcOpenMemHandle, 11000, (CUdeviceptr *, cudaIpcMemHandle_t, unsigned)) \
    X(cuIpcCloseMemHandle, 4010, (CUdeviceptr))

static struct {
#define FIELD(name, version, arguments) CUresult (*name) arguments;
    DRIVER(FIELD)
} cu;

enum { NO_DRIVER = 35, NO_SYMBOL = 500 };

static cudaError_t loaded;
static __thread int device;
static __thread cudaError_t last;

static cudaError_t remember(cudaError_t result) {
    if (result) last = result;
    return result;
}

static void load(void) {
    CUresult (*look_up)(const char *, void **, int, unsigned long long, int *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    loaded = NO_DRIVER;
    if (!library) return;
    *(void **)&look_up = dlsym(library, "cuGetProcAddress_v2");
    loaded = NO_SYMBOL;
    if (!look_up) return;
    loaded = 0;
#define FETCH(name, version, arguments) \
    if (look_up(#name, (void **)&cu.name, version, 0, NULL) || !cu.name) loaded = NO_SYMBOL;
    DRIVER(FETCH)
}

static cudaError_t need_driver(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return loaded;
}

/* The primary context of this thread's device, made current; retained again after a reset. */
static char retained[64];

static cudaError_t need_context(void) {
    void *context, *current;
    cudaError_t result = need_driver();
    if (result || (result = cu.cuInit(0))) return result;
    if (!cu.cuCtxGetCurrent(&current) && current && retained[device]) return 0;
    if ((result = cu.cuDevicePrimaryCtxRetain(&context, device))) return result;
    retained[device] = 1;
    return cu.cuCtxSetCurrent(context);
}

/* Calls a driver function with a context; returns its result as the runtime's, since the numbers are the same. */
#define CALL(call) \
    do { \
        cudaError_t result_ = need_context(); \
        return remember(result_ ? result_ : cu.call); \
    } while (0)

static cudaError_t put(void **out, CUdeviceptr address, cudaError_t result) {
    if (!result) *out = (void *)(uintptr_t)address;
    return remember(result);
}

/* Calls a driver function that puts a device address into `address`. */
#define ALLOCATE(out, call) \
    do { \
        CUdeviceptr address = 0; \
        cudaError_t result_ = need_context(); \
        if (!result_) result_ = cu.call; \
        return put(out, address, result_); \
    } while (0)

cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 12090, 0; }
cudaError_t cudaDriverGetVersion(int *version) {
    if (need_driver()) return *version = 0, 0;
    return remember(cu.cuDriverGetVersion(version));
}
cudaError_t cudaGetLastError(void) {
    cudaError_t result = last;
    last = 0;
    return result;
}
cudaError_t cudaGetDeviceCount(int *count) { CALL(cuDeviceGetCount(count)); }
cudaError_t cudaSetDevice(int to) {
    void *context;
    cudaError_t result = need_context();
    if (result || (result = cu.cuDevicePrimaryCtxRetain(&context, to))) return remember(result);
    device = to;
    retained[to] = 1;
    return remember(cu.cuCtxSetCurrent(context));
}
cudaError_t cudaDeviceReset(void) {
    cudaError_t result = need_context();
    if (result) return remember(result);
    retained[device] = 0;
    return remember(cu.cuDevicePrimaryCtxReset(device));
}
cudaError_t cudaDeviceSynchronize(void) { CALL(cuCtxSynchronize()); }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) { CALL(cuMemGetInfo(free_bytes, total)); }
cudaError_t cudaMemset(void *to, int value, size_t bytes) { CALL(cuMemsetD8((uintptr_t)to, (unsigned char)value, bytes)); }

cudaError_t cudaMalloc(void **out, size_t bytes) {
    if (bytes == 0) return *out = NULL, 0;
    ALLOCATE(out, cuMemAlloc(&address, bytes));
}
cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height) {
    ALLOCATE(out, cuMemAllocPitch(&address, pitch, width, height, 4));
}
cudaError_t cudaMalloc3D(struct cudaPitchedPtr *out, struct cudaExtent extent) {
    out->xsize = extent.width;
    out->ysize = extent.height;
    ALLOCATE(&out->ptr, cuMemAllocPitch(&address, &out->pitch, extent.width, extent.height * extent.depth, 4));
}
cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned flags) {
    ALLOCATE(out, cuMemAllocManaged(&address, bytes, flags));
}
cudaError_t cudaFree(void *address) { CALL(cuMemFree((uintptr_t)address)); }

cudaError_t cudaMallocHost(void **out, size_t bytes) { CALL(cuMemHostAlloc(out, bytes, 0)); }
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) { CALL(cuMemHostAlloc(out, bytes, flags)); }
cudaError_t cudaFreeHost(void *address) { CALL(cuMemFreeHost(address)); }
cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags) { CALL(cuMemHostRegister(address, bytes, flags)); }
cudaError_t cudaHostUnregister(void *address) { CALL(cuMemHostUnregister(address)); }

static ArrayShape shape(const struct cudaChannelFormatDesc *c, struct cudaExtent extent, unsigned flags) {
    static const int formats[3][3] = {{8, 9, 10}, {1, 2, 3}, {0, 16, 32}}; /* kind, then 8, 16 or 32 bits */
    int width = c->x == 8 ? 0 : c->x == 16 ? 1 : 2;
    unsigned channels = (c->x > 0) + (c->y > 0) + (c->z > 0) + (c->w > 0);
    return (ArrayShape){extent.width, extent.height, extent.depth, formats[c->f % 3][width], channels, flags};
}
cudaError_t cudaMalloc3DArray(cudaArray_t *out, const struct cudaChannelFormatDesc *channels, struct cudaExtent extent, unsigned flags) {
    ArrayShape wanted = shape(channels, extent, flags);
    CALL(cuArray3DCreate(out, &wanted));
}
cudaError_t cudaMallocArray(cudaArray_t *out, const struct cudaChannelFormatDesc *channels, size_t width, size_t height, unsigned flags) {
    ArrayShape wanted = shape(channels, (struct cudaExtent){width, height, 0}, flags);
    CALL(cuArray3DCreate(out, &wanted));
}
cudaError_t cudaFreeArray(cudaArray_t array) {
    if (!array) return 0;
    CALL(cuArrayDestroy(array));
}
cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t *out, const struct cudaChannelFormatDesc *channels, struct cudaExtent extent, unsigned levels, unsigned flags) {
    ArrayShape wanted = shape(channels, extent, flags);
    CALL(cuMipmappedArrayCreate(out, &wanted, levels));
}
cudaError_t cudaGetMipmappedArrayLevel(cudaArray_t *out, cudaMipmappedArray_t mipmap, unsigned level) {
    CALL(cuMipmappedArrayGetLevel(out, mipmap, level));
}
cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t mipmap) {
    if (!mipmap) return 0;
    CALL(cuMipmappedArrayDestroy(mipmap));
}

cudaError_t cudaStreamCreate(cudaStream_t *out) { CALL(cuStreamCreate(out, 0)); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { CALL(cuStreamDestroy(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { CALL(cuStreamSynchronize(stream)); }
cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
    ALLOCATE(out, cuMemAllocAsync(&address, bytes, stream));
}
cudaError_t cudaMallocFromPoolAsync(void **out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
    ALLOCATE(out, cuMemAllocFromPoolAsync(&address, bytes, pool, stream));
}
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) { CALL(cuMemFreeAsync((uintptr_t)address, stream)); }
cudaError_t cudaMemPoolCreate(cudaMemPool_t *out, const struct cudaMemPoolProps *properties) { CALL(cuMemPoolCreate(out, properties)); }
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { CALL(cuMemPoolDestroy(pool)); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) { CALL(cuMemPoolTrimTo(pool, keep)); }
cudaError_t cudaDeviceSetMemPool(int of, cudaMemPool_t pool) { CALL(cuDeviceSetMemPool(of, pool)); }
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *out, int of) { CALL(cuDeviceGetMemPool(out, of)); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) { CALL(cuStreamBeginCapture(stream, mode)); }
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) { CALL(cuStreamEndCapture(stream, out)); }
cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned flags) { CALL(cuGraphCreate(out, flags)); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { CALL(cuGraphDestroy(graph)); }
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    CALL(cuGraphInstantiateWithFlags(out, graph, flags));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) { CALL(cuGraphLaunch(exec, stream)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { CALL(cuGraphExecDestroy(exec)); }
cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *on, size_t count, struct cudaMemAllocNodeParams *params) {
    CALL(cuGraphAddMemAllocNode(node, graph, on, count, params));
}
cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *on, size_t count, void *address) {
    CALL(cuGraphAddMemFreeNode(node, graph, on, count, (uintptr_t)address));
}
cudaError_t cudaDeviceGraphMemTrim(int of) { CALL(cuDeviceGraphMemTrim(of)); }

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *address) { CALL(cuIpcGetMemHandle(out, (uintptr_t)address)); }
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    ALLOCATE(out, cuIpcOpenMemHandle(&address, handle, flags));
}
cudaError_t cudaIpcCloseMemHandle(void *address) { CALL(cuIpcCloseMemHandle((uintptr_t)address)); }
