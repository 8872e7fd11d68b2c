/* What PyTorch's allocator needs of CUDA's runtime to allocate: memory from the fake driver, and a device. run.sh adds the
 * other imported functions, which succeed and do nothing. One function per line: run.sh reads them. */
#include "cuda.h"
#include <dlfcn.h>
#include <string.h>

#define TOTAL (1ull << 36)

static void start(void) {
    static int started;
    CUcontext context;
    if (started++) return;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
}

int cudaMalloc(void **out, size_t bytes) { start(); return cuMemAlloc_v2((CUdeviceptr *)out, bytes); }
int cudaMallocAsync(void **out, size_t bytes, void *stream) { (void)stream; return cudaMalloc(out, bytes); }
/* Pools of memory are supported, as all else is. */
int cudaDeviceGetAttribute(int *value, int attribute, int device) { (void)attribute; (void)device; *value = 1; return 0; }
int cudaFree(void *address) { return address ? cuMemFree_v2((CUdeviceptr)address) : 0; }
int cudaGetDeviceCount(int *count) { start(); *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaMemGetInfo(size_t *left, size_t *all) { *left = *all = TOTAL; return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
int cudaStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return 0; }
/* totalGlobalMem follows name, uuid and luid. Expandable segments reserve addresses for a little more. */
int cudaGetDeviceProperties(void *properties, int device) { (void)device; memset(properties, 0, 1008); *(size_t *)((char *)properties + 288) = TOTAL; return 0; }
/* Its name before CUDA 13. */
int cudaGetDeviceProperties_v2(void *properties, int device) { return cudaGetDeviceProperties(properties, device); }
static int nothing(void) { return 0; }
/* Functions that the fake driver lacks do nothing. */
int cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status) { (void)flags; start(); void *found = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name); *out = found ? found : (void *)nothing; *status = 0; return 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags, int *status) { (void)version; return cudaGetDriverEntryPoint(name, out, flags, status); }
/* Events are complete once the device was waited for. */
static int waits;
int cudaEventRecord(void *event, void *stream) { (void)event; (void)stream; waits = 1; return 0; }
int cudaEventQuery(void *event) { (void)event; return waits ? 600 : 0; }
int cudaDeviceSynchronize(void) { waits = 0; return 0; }
const char *cudaGetErrorString(int error) { (void)error; return "an error"; }
const char *cudaGetErrorName(int error) { (void)error; return "an error"; }
