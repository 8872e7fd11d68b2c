/* The part of the CUDA driver API that the victims use, and the ways in which a program can look it up.
 *
 * A victim calls `cuMemAlloc_v2(…)` like any CUDA program. The lookup is chosen when the victim is compiled:
 *   -DLOOKUP_LINKED   linked with libcuda.so.1 (the default)
 *   -DLOOKUP_DLSYM    dlopen + dlsym of every name
 *   -DLOOKUP_PROC_V1  dlsym("cuGetProcAddress"), then every name through its 4 arguments
 *   -DLOOKUP_PROC_V2  dlsym("cuGetProcAddress_v2"), then every name through its 5 arguments
 *   -DLOOKUP_PROC_PTSZ the same, requesting the per-thread default stream
 * Written for these tests: nothing here needs a CUDA toolkit. */
#pragma once
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */
typedef void *CUcontext, *CUstream, *CUarray, *CUmipmap, *CUpool, *CUgraph, *CUexec, *CUnode, *CUexternal;
typedef void *CUevent, *CUmodule, *CUlibrary, *CUlinker, *CUgreen, *CUsemaphore, *CUuserObject, *CUgraphics;
typedef unsigned long long CUtexture, CUsurface;

enum { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_DEINITIALIZED = 4 };

typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcHandle;
typedef struct { int type, id; } CUlocation;
typedef struct { unsigned width, height; int format; unsigned channels; } CUarrayDescV1;
typedef struct { size_t width, height; int format; unsigned channels; } CUarrayDesc;
typedef struct { unsigned width, height, depth; int format; unsigned channels, flags; } CUarray3dDescV1;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } CUarray3dDesc;
typedef struct {
    int type, handle_types;
    CUlocation location;
    void *security;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
} CUpoolProps;
typedef struct {
    int type, handle_types;
    CUlocation location;
    void *security;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} CUphysicalProps;
typedef struct { unsigned devices; size_t bytes; unsigned long long handle_types, flags; } CUmulticastProps;
typedef struct { CUlocation location; int flags; } CUaccess;
typedef struct { CUpoolProps pool; const CUaccess *access; size_t access_count, bytes; CUdeviceptr address; } CUallocNode;
typedef struct { CUdeviceptr address; } CUfreeNode;
typedef struct { CUgraph graph; int ownership; } CUchildNode;
typedef struct {
    int type, reserved0[3];
    union { long long reserved1[29]; CUallocNode alloc; CUfreeNode free; CUchildNode child; };
    long long reserved2;
} CUnodeParams;
typedef struct { unsigned long long flags; CUstream upload; CUnode error_node; int result; } CUinstantiateParams;
typedef struct {
    int type;
    union { int fd; struct { void *handle; const void *name; } win32; };
    unsigned long long bytes;
    unsigned flags, reserved[16];
} CUexternalDesc;
typedef struct { unsigned long long offset, bytes; unsigned flags, reserved[16]; } CUexternalBuffer;
typedef struct { unsigned char reserved[64]; } CUpoolPointer;

enum { CU_LOCATION_DEVICE = 1, CU_LOCATION_HOST = 2, CU_LOCATION_PART_OF_DEVICE = 6, CU_TYPE_PINNED = 1, CU_TYPE_MANAGED = 2, CU_HANDLE_FD = 1 };
enum { CU_FORMAT_U8 = 1, CU_FORMAT_FLOAT = 0x20 };
enum { CU_CHILD_MOVED = 1, CU_NODE_CHILD = 4, CU_NODE_ALLOC = 10, CU_NODE_FREE = 11 };
enum { CU_AUTO_FREE_ON_LAUNCH = 1, CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_RELAXED = 2 };
#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

/* X(exported symbol, base name, CUDA version from which cuGetProcAddress returns it, flags, parameters) */
#define CUDA_FUNCTIONS(X) \
    X(cuInit, "cuInit", 2000, 0, (unsigned)) \
    X(cuGetExportTable, "cuGetExportTable", 3000, 0, (const void **, const CUuuid *)) \
    X(cuDeviceGet, "cuDeviceGet", 2000, 0, (CUdevice *, int)) \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, 0, (int *)) \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, 0, (CUuuid *, CUdevice)) \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, 0, (CUpool *, CUdevice)) \
    X(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020, 0, (CUdevice, CUpool)) \
    X(cuMemSetMemPool, "cuMemSetMemPool", 13000, 0, (CUlocation *, int, CUpool)) \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0, (CUcontext *, CUdevice)) \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0, (CUdevice)) \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0, (CUdevice)) \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0, (CUdevice)) \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0, (CUdevice)) \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, 0, (CUcontext *, unsigned, CUdevice)) \
    X(cuCtxDestroy, "cuCtxDestroy", 2000, 0, (CUcontext)) \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0, (CUcontext)) \
    X(cuCtxAttach, "cuCtxAttach", 2000, 0, (CUcontext *, unsigned)) \
    X(cuCtxDetach, "cuCtxDetach", 2000, 0, (CUcontext)) \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 0, (CUcontext)) \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 0, (CUcontext *)) \
    X(cuStreamCreate, "cuStreamCreate", 2000, 0, (CUstream *, unsigned)) \
    X(cuCtxSetLimit, "cuCtxSetLimit", 3010, 0, (int, size_t)) \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0, (CUstream)) \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, 0, (CUstream *, unsigned, int)) \
    X(cuEventCreate, "cuEventCreate", 2000, 0, (CUevent *, unsigned)) \
    X(cuEventDestroy_v2, "cuEventDestroy", 4000, 0, (CUevent)) \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, 0, (CUmodule *, const void *)) \
    X(cuModuleUnload, "cuModuleUnload", 2000, 0, (CUmodule)) \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, 0, (void **, CUmodule, const char *)) \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000, 0, (CUlibrary *, const void *, void *, void *, unsigned, void *, void *, unsigned)) \
    X(cuLibraryUnload, "cuLibraryUnload", 12000, 0, (CUlibrary)) \
    X(cuLinkCreate_v2, "cuLinkCreate", 6050, 0, (unsigned, void *, void *, CUlinker *)) \
    X(cuLinkDestroy, "cuLinkDestroy", 5050, 0, (CUlinker)) \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, 0, (CUgreen *, void *, CUdevice, unsigned)) \
    X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, 0, (CUgreen)) \
    X(cuTexObjectCreate, "cuTexObjectCreate", 5000, 0, (CUtexture *, const void *, const void *, const void *)) \
    X(cuTexObjectDestroy, "cuTexObjectDestroy", 5000, 0, (CUtexture)) \
    X(cuSurfObjectCreate, "cuSurfObjectCreate", 5000, 0, (CUsurface *, const void *)) \
    X(cuSurfObjectDestroy, "cuSurfObjectDestroy", 5000, 0, (CUsurface)) \
    X(cuImportExternalSemaphore, "cuImportExternalSemaphore", 10000, 0, (CUsemaphore *, const void *)) \
    X(cuDestroyExternalSemaphore, "cuDestroyExternalSemaphore", 10000, 0, (CUsemaphore)) \
    X(cuGraphicsGLRegisterBuffer, "cuGraphicsGLRegisterBuffer", 3000, 0, (CUgraphics *, unsigned, unsigned)) \
    X(cuGraphicsGLRegisterImage, "cuGraphicsGLRegisterImage", 3000, 0, (CUgraphics *, unsigned, unsigned, unsigned)) \
    X(cuGraphicsEGLRegisterImage, "cuGraphicsEGLRegisterImage", 7000, 0, (CUgraphics *, void *, unsigned)) \
    X(cuGraphicsVDPAURegisterVideoSurface, "cuGraphicsVDPAURegisterVideoSurface", 3010, 0, (CUgraphics *, unsigned, unsigned)) \
    X(cuGraphicsVDPAURegisterOutputSurface, "cuGraphicsVDPAURegisterOutputSurface", 3010, 0, (CUgraphics *, unsigned, unsigned)) \
    X(cuGraphicsUnregisterResource, "cuGraphicsUnregisterResource", 3000, 0, (CUgraphics)) \
    X(cuUserObjectCreate, "cuUserObjectCreate", 11030, 0, (CUuserObject *, void *, void (*)(void *), unsigned, unsigned)) \
    X(cuUserObjectRetain, "cuUserObjectRetain", 11030, 0, (CUuserObject, unsigned)) \
    X(cuUserObjectRelease, "cuUserObjectRelease", 11030, 0, (CUuserObject, unsigned)) \
    X(cuGraphRetainUserObject, "cuGraphRetainUserObject", 11030, 0, (CUgraph, CUuserObject, unsigned, unsigned)) \
    X(cuGraphClone, "cuGraphClone", 10000, 0, (CUgraph *, CUgraph)) \
    X(cuMemAlloc, "cuMemAlloc", 2000, 0, (unsigned *, unsigned)) \
    X(cuMemsetD8Async, "cuMemsetD8Async", 3020, 0, (CUdeviceptr, unsigned char, size_t, CUstream)) \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, 0, (CUdeviceptr *, size_t)) \
    X(cuMemAllocPitch, "cuMemAllocPitch", 2000, 0, (unsigned *, unsigned *, unsigned, unsigned, unsigned)) \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0, (CUdeviceptr *, size_t, unsigned)) \
    X(cuMemFree, "cuMemFree", 2000, 0, (unsigned)) \
    X(cuMemFree_v2, "cuMemFree", 3020, 0, (CUdeviceptr)) \
    X(cuMemAllocHost, "cuMemAllocHost", 2000, 0, (void **, unsigned)) \
    X(cuMemAllocHost_v2, "cuMemAllocHost", 3020, 0, (void **, size_t)) \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020, 0, (void **, size_t, unsigned)) \
    X(cuMemFreeHost, "cuMemFreeHost", 2000, 0, (void *)) \
    X(cuMemHostRegister, "cuMemHostRegister", 4000, 0, (void *, size_t, unsigned)) \
    X(cuMemHostRegister_v2, "cuMemHostRegister", 6050, 0, (void *, size_t, unsigned)) \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000, 0, (void *)) \
    X(cuArrayCreate, "cuArrayCreate", 2000, 0, (CUarray *, const CUarrayDescV1 *)) \
    X(cuArrayCreate_v2, "cuArrayCreate", 3020, 0, (CUarray *, const CUarrayDesc *)) \
    X(cuArray3DCreate, "cuArray3DCreate", 2000, 0, (CUarray *, const CUarray3dDescV1 *)) \
    X(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0, (CUarray *, const CUarray3dDesc *)) \
    X(cuArrayDestroy, "cuArrayDestroy", 2000, 0, (CUarray)) \
    X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, 0, (CUmipmap *, const CUarray3dDesc *, unsigned)) \
    X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, 0, (CUmipmap)) \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0, (CUdeviceptr *, size_t, CUstream)) \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 2, (CUdeviceptr *, size_t, CUstream)) \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0, (CUdeviceptr *, size_t, CUpool, CUstream)) \
    X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, 2, (CUdeviceptr *, size_t, CUpool, CUstream)) \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0, (CUdeviceptr, CUstream)) \
    X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 2, (CUdeviceptr, CUstream)) \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, 0, (CUpool *, const CUpoolProps *)) \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0, (CUpool)) \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 0, (CUpool, size_t)) \
    X(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020, 0, (void *, CUpool, int, unsigned long long)) \
    X(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020, 0, (CUpool *, void *, int, unsigned long long)) \
    X(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020, 0, (CUpoolPointer *, CUdeviceptr)) \
    X(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, 0, (CUdeviceptr *, CUpool, CUpoolPointer *)) \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020, 0, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
    X(cuMemAddressFree, "cuMemAddressFree", 10020, 0, (CUdeviceptr, size_t)) \
    X(cuMemCreate, "cuMemCreate", 10020, 0, (CUhandle *, size_t, const CUphysicalProps *, unsigned long long)) \
    X(cuMemRelease, "cuMemRelease", 10020, 0, (CUhandle)) \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0, (CUhandle *, void *)) \
    X(cuMemMap, "cuMemMap", 10020, 0, (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long)) \
    X(cuMemUnmap, "cuMemUnmap", 10020, 0, (CUdeviceptr, size_t)) \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020, 0, (void *, CUhandle, int, unsigned long long)) \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, 0, (CUhandle *, void *, int)) \
    X(cuMulticastCreate, "cuMulticastCreate", 12010, 0, (CUhandle *, const CUmulticastProps *)) \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 0, (CUipcHandle *, CUdeviceptr)) \
    X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, 0, (CUdeviceptr *, CUipcHandle, unsigned)) \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, 0, (CUdeviceptr *, CUipcHandle, unsigned)) \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, 0, (CUdeviceptr)) \
    X(cuImportExternalMemory, "cuImportExternalMemory", 10000, 0, (CUexternal *, const CUexternalDesc *)) \
    X(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 10000, 0, (CUdeviceptr *, CUexternal, const CUexternalBuffer *)) \
    X(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000, 0, (CUexternal)) \
    X(cuGraphCreate, "cuGraphCreate", 10000, 0, (CUgraph *, unsigned)) \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, 0, (CUgraph)) \
    X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040, 0, (CUnode *, CUgraph, const CUnode *, size_t, CUallocNode *)) \
    X(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040, 0, (CUnode *, CUgraph, const CUnode *, size_t, CUdeviceptr)) \
    X(cuGraphAddNode, "cuGraphAddNode", 12020, 0, (CUnode *, CUgraph, const CUnode *, size_t, CUnodeParams *)) \
    X(cuGraphAddNode_v2, "cuGraphAddNode", 12030, 0, (CUnode *, CUgraph, const CUnode *, const void *, size_t, CUnodeParams *)) \
    X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, 0, (CUexec *, CUgraph, CUnode *, char *, size_t)) \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, 0, (CUexec *, CUgraph, unsigned long long)) \
    X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000, 0, (CUexec *, CUgraph, CUinstantiateParams *)) \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, 0, (CUexec, CUstream)) \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, 0, (CUexec)) \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 0, (CUstream, int)) \
    X(cuStreamBeginRecaptureToGraph, "cuStreamBeginRecaptureToGraph", 13020, 0, (CUstream, int, CUgraph, void *, void *)) \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, 0, (CUstream, CUgraph *))

#if defined(LOOKUP_DLSYM) || defined(LOOKUP_PROC_V1) || defined(LOOKUP_PROC_V2) || defined(LOOKUP_PROC_PTSZ)
#define X(symbol, base, version, flags, parameters) static CUresult(*symbol) parameters __attribute__((unused));
CUDA_FUNCTIONS(X)
#undef X

static void *libcuda_handle;

static __attribute__((unused)) void *libcuda(void) {
    if (!libcuda_handle) libcuda_handle = dlopen("libcuda.so.1", RTLD_NOW);
    return libcuda_handle;
}

/* Resolves every function; one that the driver lacks stays NULL. Returns 0 if there is no driver. */
static __attribute__((unused)) int open_driver(void) {
    if (!libcuda()) return 0;
#if defined(LOOKUP_DLSYM)
#define X(symbol, base, version, flags, parameters) *(void **)&symbol = dlsym(libcuda(), #symbol);
#elif defined(LOOKUP_PROC_V1)
    CUresult (*look_up)(const char *, void **, int, uint64_t) = dlsym(libcuda(), "cuGetProcAddress");
    if (!look_up) return 0;
#define X(symbol, base, version, flags, parameters) \
    if (look_up(base, (void **)&symbol, version, flags) != CUDA_SUCCESS) symbol = NULL;
#else
    CUresult (*look_up)(const char *, void **, int, uint64_t, int *) = dlsym(libcuda(), "cuGetProcAddress_v2");
    if (!look_up) return 0;
#if defined(LOOKUP_PROC_PTSZ)
#define X(symbol, base, version, flags, parameters) \
    if (look_up(base, (void **)&symbol, version, 2, NULL) != CUDA_SUCCESS) symbol = NULL;
#else
#define X(symbol, base, version, flags, parameters) \
    if (look_up(base, (void **)&symbol, version, flags, NULL) != CUDA_SUCCESS) symbol = NULL;
#endif
#endif
    CUDA_FUNCTIONS(X)
#undef X
    return 1;
}
#else
#define X(symbol, base, version, flags, parameters) extern CUresult symbol parameters;
CUDA_FUNCTIONS(X)
#undef X
static __attribute__((unused)) int open_driver(void) { return 1; }
#endif
