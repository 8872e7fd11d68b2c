/* Registers heaps and regions through NVTX's memory extension: with -DREAL_HEADER through NVIDIA's header, otherwise through
 * a copy of its interface. The library that NVTX_INJECTION64_PATH names provides the functions. */
#include "victim.h"

#ifdef REAL_HEADER
#include <nvtx3/nvToolsExtMem.h>
#define heap_register(desc) nvtxMemHeapRegister(NULL, desc)
#define heap_unregister(heap) nvtxMemHeapUnregister(NULL, heap)
#define heap_reset(heap) nvtxMemHeapReset(NULL, heap)
#define regions_register(batch) nvtxMemRegionsRegister(NULL, batch)
#define regions_resize(batch) nvtxMemRegionsResize(NULL, batch)
#define regions_unregister(batch) nvtxMemRegionsUnregister(NULL, batch)
static void open_nvtx(void) {}
#else
typedef struct { size_t size; const void *ptr; } nvtxMemVirtualRangeDesc_t;
typedef void *nvtxMemHeapHandle_t, *nvtxMemRegionHandle_t;
typedef union { const void *pointer; nvtxMemRegionHandle_t handle; } nvtxMemRegionRef_t;
typedef union { const char *ascii; const void *other; } nvtxMessageValue_t;
typedef struct {
    uint16_t extCompatID, structSize;
    uint32_t reserved0, usage, type;
    size_t typeSpecificDescSize;
    const void *typeSpecificDesc;
    uint32_t category, messageType;
    nvtxMessageValue_t message;
} nvtxMemHeapDesc_t;
typedef struct {
    uint16_t extCompatID, structSize;
    uint32_t regionType;
    nvtxMemHeapHandle_t heap;
    size_t regionCount, regionDescElementSize;
    const void *regionDescElements;
    nvtxMemRegionHandle_t *regionHandleElementsOut;
} nvtxMemRegionsRegisterBatch_t;
typedef struct {
    uint16_t extCompatID, structSize;
    uint32_t regionType;
    size_t regionDescCount, regionDescElementSize;
    const void *regionDescElements;
} nvtxMemRegionsResizeBatch_t;
typedef struct {
    uint16_t extCompatID, structSize;
    uint32_t refType;
    size_t refCount, refElementSize;
    const nvtxMemRegionRef_t *refElements;
} nvtxMemRegionsUnregisterBatch_t;
enum {
    NVTX_EXT_COMPATID_MEM = 0x0102, NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR = 1, NVTX_MEM_TYPE_VIRTUAL_ADDRESS = 1,
    NVTX_MESSAGE_TYPE_ASCII = 1, NVTX_MEM_REGION_REF_TYPE_POINTER = 1, NVTX_MEM_REGION_REF_TYPE_HANDLE = 2,
};
struct segment { size_t id, slot_count; intptr_t *slots; };
struct module { uint16_t version, bytes, module, compatible; size_t segment_count; struct segment *segments; void *get, *info; };
static intptr_t slots[63];

/* As the header does at its first call: without a tool the slots stay empty. */
static void open_nvtx(void) {
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_LAZY) : NULL;
    int (*initialize)(struct module *) = library ? dlsym(library, "InitializeInjectionNvtxExtension") : NULL;
    struct segment segment = {1, 63, slots};
    struct module module = {3, sizeof module, 1, NVTX_EXT_COMPATID_MEM, 1, &segment, NULL, NULL};
    if (initialize) REQUIRE(initialize(&module));
}

#define CALL(slot, type, ...) (slots[slot] ? ((type)slots[slot])(__VA_ARGS__) : 0)
#define VOID_CALL(slot, type, ...) (slots[slot] ? ((type)slots[slot])(__VA_ARGS__) : (void)0)
#define heap_register(desc) CALL(0, nvtxMemHeapHandle_t (*)(void *, const nvtxMemHeapDesc_t *), NULL, desc)
#define heap_unregister(heap) VOID_CALL(1, void (*)(void *, nvtxMemHeapHandle_t), NULL, heap)
#define heap_reset(heap) VOID_CALL(2, void (*)(void *, nvtxMemHeapHandle_t), NULL, heap)
#define regions_register(batch) VOID_CALL(3, void (*)(void *, const nvtxMemRegionsRegisterBatch_t *), NULL, batch)
#define regions_resize(batch) VOID_CALL(4, void (*)(void *, const nvtxMemRegionsResizeBatch_t *), NULL, batch)
#define regions_unregister(batch) VOID_CALL(5, void (*)(void *, const nvtxMemRegionsUnregisterBatch_t *), NULL, batch)
#endif

static nvtxMemHeapHandle_t new_heap(const char *name, CUdeviceptr at, size_t bytes) {
    nvtxMemVirtualRangeDesc_t range = {bytes, (void *)at};
    nvtxMemHeapDesc_t desc = {
        .extCompatID = NVTX_EXT_COMPATID_MEM, .structSize = sizeof desc, .usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR,
        .type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS, .typeSpecificDescSize = sizeof range, .typeSpecificDesc = &range,
        .messageType = name ? NVTX_MESSAGE_TYPE_ASCII : 0, .message.ascii = name,
    };
    return heap_register(&desc);
}

static NOINLINE void new_regions(nvtxMemHeapHandle_t heap, CUdeviceptr at, size_t bytes, size_t count, nvtxMemRegionHandle_t *handles) {
    nvtxMemVirtualRangeDesc_t ranges[8];
    REQUIRE(count <= 8);
    for (size_t i = 0; i < count; i++) ranges[i] = (nvtxMemVirtualRangeDesc_t){bytes, (void *)(at + i * bytes)};
    nvtxMemRegionsRegisterBatch_t batch = {
        .extCompatID = NVTX_EXT_COMPATID_MEM, .structSize = sizeof batch, .regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
        .heap = heap, .regionCount = count, .regionDescElementSize = sizeof ranges[0], .regionDescElements = ranges,
        .regionHandleElementsOut = handles,
    };
    regions_register(&batch);
    STAY();
}

static void drop(int type, nvtxMemRegionRef_t region) {
    nvtxMemRegionsUnregisterBatch_t batch = {
        .extCompatID = NVTX_EXT_COMPATID_MEM, .structSize = sizeof batch, .refType = (uint32_t)type,
        .refCount = 1, .refElementSize = sizeof region, .refElements = &region,
    };
    regions_unregister(&batch);
}

/* Regions of two heaps and of the whole process: some freed by address, one by handle, one heap's all at once, one resized. */
static void regions(void) {
    start_cuda();
    open_nvtx();
    CUdeviceptr slab = leak(1 << 20);
    nvtxMemHeapHandle_t textures = new_heap("textures", slab, 1 << 19), unnamed = new_heap(NULL, slab + (1 << 19), 1 << 19);
    nvtxMemRegionHandle_t handles[8] = {0};
    new_regions(textures, slab, 256, 4, handles);
    drop(NVTX_MEM_REGION_REF_TYPE_POINTER, (nvtxMemRegionRef_t){.pointer = (void *)slab});
    drop(NVTX_MEM_REGION_REF_TYPE_HANDLE, (nvtxMemRegionRef_t){.handle = handles[1]});
    new_regions(unnamed, slab + (1 << 19), 1000, 3, NULL);
    heap_reset(unnamed);
    new_regions(unnamed, slab + (1 << 19), 1000, 1, NULL);
    nvtxMemVirtualRangeDesc_t larger = {4096, (void *)(slab + (1 << 19))};
    nvtxMemRegionsResizeBatch_t resize = {
        .extCompatID = NVTX_EXT_COMPATID_MEM, .structSize = sizeof resize, .regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
        .regionDescCount = 1, .regionDescElementSize = sizeof larger, .regionDescElements = &larger,
    };
    regions_resize(&resize);
    nvtxMemHeapHandle_t gone = new_heap("gone", slab + 65536, 65536);
    new_regions(gone, slab + 65536, 512, 2, NULL);
    heap_unregister(gone);
}

MAIN(BEHAVIOUR(regions))
