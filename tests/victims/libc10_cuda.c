/* Stands in for PyTorch's libc10_cuda: segments from the driver, divided into blocks of multiples of 512 bytes, each
 * reported to libc10 under the allocator's lock. Blocks are cut from the end of a segment; free lists are per size.
 * -DOVER_RUNTIME: segments come from cudaMalloc, as in the real one. -DNAMED: in a function of the real one's name.
 * -DGPU=n: it reports that they are on this device. */
#include "cuda.h"
#include <pthread.h>
#include <stdlib.h>

#ifdef SIGNED_TOTALS
#define TOTALS "ll"
#else
#define TOTALS "mm"
#endif

struct device { int8_t type, index; };
extern void report_usage(void *, int64_t, size_t, size_t, struct device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvl" TOTALS "NS_6DeviceE");
extern void report_out_of_memory(int64_t, size_t, size_t, struct device) __asm__("_ZN3c1027reportOutOfMemoryToProfilerEl" TOTALS "NS_6DeviceE");

#ifdef OVER_RUNTIME
extern int cudaMalloc(void **, size_t), cudaFree(void *);
static int take_segment(CUdeviceptr *at, size_t bytes) {
    void *address = NULL;
    int result = cudaMalloc(&address, bytes);
    *at = (CUdeviceptr)(uintptr_t)address;
    return result;
}
static int give_segment_back(CUdeviceptr at) { return cudaFree((void *)(uintptr_t)at); }
#else
#ifdef NAMED
__attribute__((noinline)) int take_segment(CUdeviceptr *, size_t) __asm__("_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator11alloc_blockEm");
#else
static
#endif
int take_segment(CUdeviceptr *at, size_t bytes) {
    int result = cuMemAlloc_v2(at, bytes);
    return result;
}
static int give_segment_back(CUdeviceptr at) { return cuMemFree_v2(at); }
#endif

enum { SEGMENT = 2 << 20, SIZES = 4096 };
struct block { struct block *next; CUdeviceptr at; size_t bytes; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *kept[SIZES];
static CUdeviceptr segment;
static size_t left, live, reserved, most;
#ifndef GPU
#define GPU 0
#endif
static const struct device gpu = {1, GPU};

/* The error in the allocator's totals, for claims about the check. */
size_t lie;

struct block *stand_in_malloc(size_t bytes) {
    bytes = (bytes + 511) / 512 * 512;
    pthread_mutex_lock(&lock);
    struct block *block = bytes / 512 < SIZES ? kept[bytes / 512] : NULL;
    if (block) {
        kept[bytes / 512] = block->next;
    } else {
        size_t wanted = bytes > SEGMENT ? bytes : SEGMENT;
        if (bytes > left) {
            if (take_segment(&segment, wanted) != CUDA_SUCCESS) {
                report_out_of_memory((int64_t)bytes, live, reserved, gpu);
                pthread_mutex_unlock(&lock);
                return NULL;
            }
            left = wanted;
            reserved += wanted;
        }
        block = malloc(sizeof *block);
        left -= bytes;
        *block = (struct block){NULL, segment + left, bytes};
    }
    live += bytes;
    if (live > most) most = live;
    report_usage((void *)block->at, (int64_t)bytes, live + lie, reserved, gpu);
    pthread_mutex_unlock(&lock);
    return block;
}

void stand_in_free(struct block *block) {
    pthread_mutex_lock(&lock);
    live -= block->bytes;
    report_usage((void *)block->at, -(int64_t)block->bytes, live + lie, reserved, gpu);
    if (block->bytes / 512 < SIZES) {
        block->next = kept[block->bytes / 512];
        kept[block->bytes / 512] = block;
    }
    pthread_mutex_unlock(&lock);
}

/* Frees the newest segment; its blocks must be free. */
void stand_in_empty_cache(void) {
    if (give_segment_back(segment) != CUDA_SUCCESS) abort();
    reserved = left = 0;
}

CUdeviceptr stand_in_address(struct block *block) { return block->at; }

/* A block that was allocated before the recorder was there. */
void stand_in_free_of_unknown(void) { report_usage((void *)0x1000, -512, live, reserved, gpu); }

/* The totals alone. */
void stand_in_report_totals(void) { report_usage(NULL, 0, live, reserved, gpu); }

/* Other kinds of devices are reported through the same function. */
void stand_in_other_device(void) { report_usage((void *)0x2000, 4096, 4096, 4096, (struct device){20, 0}); }

size_t stand_in_live(void) { return live; }
size_t stand_in_peak(void) { return most; }
size_t stand_in_reserved(void) { return reserved; }
