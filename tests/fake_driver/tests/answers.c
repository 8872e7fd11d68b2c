/* The results of some 360 driver calls, valid and invalid ones: one line per call, the same on every machine.
 *
 * answers.txt holds the lines of a real driver (580.159, H200); the fake driver must print the same ones. Left out are
 * calls whose answer depends on the machine, and mistakes that crash the real driver: freeing the same array or
 * asynchronous block twice, freeing cudaMalloc memory with cuMemFreeAsync, destroying a level of a mipmap. */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define P(call) (printf("%s = %d\n", #call, (int)(call)), fflush(stdout))
#define V(value) (printf("  %s is %lld\n", #value, (long long)(value)), fflush(stdout))

static CUdevice d;
static CUdeviceptr p, q, r;
static CUcontext c, c2, cur;
static int n;
static size_t f, t, f2;
static void *h;
static size_t pitch;
static CUmemPoolProps pp;
static CUmemoryPool pool, pl2;
static CUDA_ARRAY_DESCRIPTOR ad = {64, 64, CU_AD_FORMAT_FLOAT, 4};
static CUarray a, a2;
static CUDA_ARRAY3D_DESCRIPTOR a3 = {64, 64, 1, CU_AD_FORMAT_FLOAT, 4, 0};
static CUmipmappedArray m;
static CUmemAllocationProp pr;
static CUmemGenericAllocationHandle g, g2, g3;
static size_t gran;
static CUmemAccessDesc acc = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
static int fd;
static size_t rs;
static CUdeviceptr rb;
static CUstream s, s2;
static CUgraph gr;
static CUgraphExec ex, ex2;
static CUstreamCaptureStatus st;
static size_t nn;
static CUgraph gc;
static pthread_t th;
static CUDA_MEM_ALLOC_NODE_PARAMS ap;
static CUgraphNode na, nf;
static CUipcMemHandle ih;
static unsigned ty = 77;
static unsigned fl;
static CUevent ev;
static size_t lim;
static CUDA_EXTERNAL_MEMORY_HANDLE_DESC ed;
static CUexternalMemory em;

static void late(void) {
    P(cuMemAlloc(&p, 1));
}

static void *other_thread(void *context) {
    P(cuMemAlloc(&p, 1));
    P(cuCtxSetCurrent(context));
    P(cuMemAlloc(&p, 1));
    return 0;
}

static void before_and_after_init(void) {
    P(cuMemAlloc(&p, 1));
    P(cuDeviceGetCount(&n));
    P(cuDriverGetVersion(&n));
    P(cuInit(1));
    P(cuInit(0));
    atexit(late);
    P(cuDeviceGet(&d, 0));
    P(cuDeviceGet(&d, 99));
    d = 0;
    P(cuMemAlloc(&p, 1));
    P(cuCtxSynchronize());
    P(cuDevicePrimaryCtxRelease(d));
    P(cuDevicePrimaryCtxRetain(&c, d));
    P(cuCtxSetCurrent(c));
    P(cuMemAlloc(&p, 0));
    P(cuMemAlloc(0, 10));
    P(cuMemFree(0));
    P(cuMemFreeHost(0));
    P(cuMemFreeAsync(0, 0));
    P(cuMemAlloc(&p, 1000));
    P(cuMemAlloc(&q, 1000));
    V(q - p);
    P(cuMemFree(p));
    P(cuMemFree(p));
    P(cuMemAlloc(&r, 1000));
    V(r == p);
    P(cuMemFree(q + 8));
    P(cuMemFree(0x1234));
    P(cuMemGetInfo(&f, &t));
    P(cuMemFree(q));
    P(cuMemFree(q));
    P(cuMemFree(r));
    P(cuMemAlloc(&q, 1000));
    V(q == r);
    P(cuMemFree(q));
    P(cuMemAlloc(&p, 64ull << 40));
}

static void host_and_managed(void) {
    P(cuMemHostAlloc(&h, 1 << 20, 0));
    P(cuMemFree((CUdeviceptr)h));
    P(cuMemHostUnregister(h));
    P(cuMemFreeHost((char *)h + 8));
    P(cuMemFreeHost(h));
    P(cuMemFreeHost(h));
    P(cuMemAllocHost(&h, 100));
    P(cuMemFreeHost(h));
    P(cuMemHostAlloc(&h, 0, 0));
    P(cuMemAllocManaged(&p, 1 << 20, 1));
    P(cuMemFreeHost((void *)p));
    P(cuMemFreeAsync(p, 0));
    P(cuMemFree(p));
    P(cuMemAllocManaged(&p, 1 << 20, 0));
    P(cuMemAllocManaged(&p, 0, 1));
    P(cuMemAlloc(&p, 100));
    P(cuMemFreeHost((void *)p));
    P(cuMemFree(p));
    h = aligned_alloc(4096, 1 << 20);
    P(cuMemHostRegister(h, 1 << 20, 0));
    P(cuMemHostRegister(h, 1 << 20, 0));
    P(cuMemFreeHost(h));
    P(cuMemHostUnregister((char *)h + 8));
    P(cuMemHostUnregister(h));
    P(cuMemHostUnregister(h));
}

static void pitched(void) {
    P(cuMemAllocPitch(&p, &pitch, 100, 10, 4));
    V(pitch);
    P(cuMemFree(p));
    P(cuMemAllocPitch(&p, &pitch, 100, 10, 3));
    P(cuMemAllocPitch(&p, &pitch, 0, 10, 4));
    P(cuMemAllocPitch(&p, &pitch, 10, 0, 4));
}

static void stream_ordered(void) {
    P(cuMemAllocAsync(&p, 1 << 20, 0));
    P(cuMemFree(p));
    P(cuMemFree(p));
    P(cuMemAllocAsync(&p, 1 << 20, 0));
    P(cuMemFreeAsync(p, 0));
    P(cuMemFreeAsync(p, 0));
    P(cuMemAllocAsync(&q, 1 << 20, 0));
    V(q == p);
    P(cuMemFreeAsync(q, 0));
    P(cuMemAllocAsync(&p, 0, 0));
    V(p);
    P(cuMemAllocAsync(&p, 64ull << 40, 0));
    memset(&pp, 0, sizeof pp);
    pp.allocType = 1;
    pp.location.type = 1;
    pp.location.id = 0;
    P(cuMemPoolCreate(&pool, &pp));
    P(cuMemAllocFromPoolAsync(&p, 1 << 20, pool, 0));
    P(cuDeviceSetMemPool(0, pool));
    P(cuMemPoolDestroy(pool));
    P(cuDeviceGetMemPool(&pl2, 0));
    V(pl2 == pool);
    P(cuMemFreeAsync(p, 0));
    P(cuDeviceGetDefaultMemPool(&pool, 0));
    V(pl2 == pool);
    P(cuMemPoolDestroy(pool));
    pp.allocType = 0;
    P(cuMemPoolCreate(&pool, &pp));
}

static void arrays(void) {
    P(cuArrayCreate(&a, &ad));
    P(cuArrayDestroy(a));
    ad.NumChannels = 3;
    P(cuArrayCreate(&a, &ad));
    ad.NumChannels = 4;
    P(cuArrayDestroy(0));
    P(cuMipmappedArrayCreate(&m, &a3, 3));
    P(cuMipmappedArrayGetLevel(&a, m, 1));
    P(cuMipmappedArrayGetLevel(&a2, m, 1));
    V(a == a2);
    P(cuMipmappedArrayDestroy(m));
}

static void vmm(void) {
    memset(&pr, 0, sizeof pr);
    pr.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    pr.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    pr.location.id = 0;
    pr.requestedHandleTypes = 1;
    P(cuMemGetAllocationGranularity(&gran, &pr, 0));
    V(gran);
    P(cuMemCreate(&g, 100, &pr, 0));
    P(cuMemCreate(&g, 4 << 20, &pr, 0));
    P(cuMemAddressReserve(&p, 100, 0, 0, 0));
    P(cuMemAddressReserve(&p, 16 << 20, 0, 0, 0));
    P(cuMemMap(p, 4 << 20, 0, g, 0));
    P(cuMemMap(p, 4 << 20, 0, g, 0));
    P(cuMemMap(p + (4 << 20), 8 << 20, 0, g, 0));
    P(cuMemMap(p + (4 << 20), 4 << 20, 0, g, 0));
    P(cuMemSetAccess(p + (8 << 20), 2 << 20, &acc, 1));
    P(cuMemSetAccess(p, 8 << 20, &acc, 1));
    P(cuMemsetD8(p, 7, 100));
    P(cuMemRelease(g));
    P(cuMemRelease(g));
    P(cuMemMap(p + (8 << 20), 4 << 20, 0, g, 0));
    P(cuMemRetainAllocationHandle(&g2, (void *)(p + 100)));
    V(g2 == g);
    P(cuMemRetainAllocationHandle(&g3, (void *)(p)));
    V(g2 == g3);
    P(cuMemRelease(g3));
    P(cuMemRetainAllocationHandle(&g3, (void *)(p + (12 << 20))));
    P(cuMemExportToShareableHandle(&fd, g2, 1, 0));
    P(cuMemImportFromShareableHandle(&g3, (void *)(long)fd, 1));
    V(g3 == g2);
    P(cuMemGetAddressRange(&rb, &rs, p + 100));
    V(rb == p);
    V(rs);
    P(cuMemFree(p));
    P(cuMemUnmap(p, 2 << 20));
    P(cuMemUnmap(p, 16 << 20));
    P(cuMemRelease(g2));
    P(cuMemAddressFree(p, 8 << 20));
    P(cuMemUnmap(p, 8 << 20));
    P(cuMemUnmap(p, 8 << 20));
    P(cuMemRelease(g3));
    P(cuMemAddressFree(p, 8 << 20));
    P(cuMemAddressFree(p, 16 << 20));
    P(cuMemAddressFree(p, 16 << 20));
    P(cuMemAddressReserve(&p, 16 << 20, 0, 0, 0));
    P(cuMemCreate(&g, 2 << 20, &pr, 0));
    P(cuMemMap(p, 2 << 20, 0, g, 0));
    P(cuMemRelease(g));
    P(cuMemAddressFree(p, 16 << 20));
    P(cuMemUnmap(p, 2 << 20));
    P(cuMemAddressFree(p, 16 << 20));
    P(cuMemRetainAllocationHandle(&g, (void *)p));
    P(cuMemAlloc(&q, 1000));
    P(cuMemRetainAllocationHandle(&g, (void *)q));
    P(cuMemFree(q));
}

static void captures(void) {
    P(cuStreamCreate(&s, 1));
    P(cuStreamCreate(&s2, 1));
    P(cuStreamBeginCapture(0, 0));
    P(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    P(cuStreamBeginCapture(s, 0));
    P(cuMemAllocAsync(&p, 1 << 20, s));
    P(cuStreamIsCapturing(s, &st));
    V(st);
    P(cuStreamIsCapturing(0, &st));
    P(cuStreamEndCapture(s2, &gr));
    P(cuStreamEndCapture(s, &gr));
    P(cuGraphGetNodes(gr, 0, &nn));
    V(nn);
    P(cuMemFree(p));
    P(cuMemFreeAsync(p, 0));
    P(cuGraphInstantiateWithFlags(&ex, gr, 0));
    P(cuGraphInstantiateWithFlags(&ex2, gr, 0));
    P(cuGraphLaunch(ex, s));
    P(cuStreamSynchronize(s));
    P(cuGraphLaunch(ex, s));
    P(cuGraphExecDestroy(ex));
    P(cuGraphDestroy(gr));
    P(cuMemFree(p));
    P(cuMemFree(p));
    P(cuStreamBeginCapture(s, 0));
    P(cuMemAllocAsync(&p, 1 << 20, s));
    P(cuStreamEndCapture(s, &gr));
    P(cuGraphInstantiateWithFlags(&ex, gr, 1));
    P(cuGraphLaunch(ex, s));
    P(cuGraphLaunch(ex, s));
    P(cuStreamSynchronize(s));
    P(cuMemFreeAsync(p, s));
    P(cuGraphLaunch(ex, s));
    P(cuStreamSynchronize(s));
    P(cuGraphExecDestroy(ex));
    P(cuGraphDestroy(gr));
    P(cuMemFree(p));
    P(cuStreamBeginCapture(s, 0));
    P(cuMemAllocAsync(&p, 1 << 20, s));
    P(cuMemFreeAsync(p, s));
    P(cuStreamEndCapture(s, &gr));
    P(cuGraphInstantiateWithFlags(&ex, gr, 0));
    P(cuGraphLaunch(ex, s));
    P(cuGraphLaunch(ex, s));
    P(cuStreamSynchronize(s));
    P(cuGraphClone(&gc, gr));
    P(cuGraphExecDestroy(ex));
    P(cuGraphDestroy(gr));
    P(cuMemAlloc(&q, 100));
    P(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    P(cuMemAlloc(&p, 1));
    P(cuStreamEndCapture(s, &gr));
    V(gr == 0);
    P(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    P(cuMemFree(q));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    P(cuMemHostAlloc(&h, 100, 0));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    P(cuMemCreate(&g, 2 << 20, &pr, 0));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    P(cuMemAllocManaged(&p, 100, 1));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    P(cuMemAllocAsync(&p, 100, s2));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    P(cuMemAllocAsync(&r, 100, 0));
    P(cuStreamEndCapture(s, &gr));
    P(cuMemAllocAsync(&r, 100, s2));
    P(cuStreamBeginCapture(s, 0));
    P(cuMemFreeAsync(r, s2));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, 0));
    P(cuMemFree(r));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, 0));
    P(cuMemAddressReserve(&p, 2 << 20, 0, 0, 0));
    P(cuStreamEndCapture(s, &gr));
    h = aligned_alloc(4096, 1 << 20);
    P(cuStreamBeginCapture(s, 0));
    P(cuMemHostRegister(h, 4096, 0));
    P(cuMemHostUnregister(h));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, 0));
    P(cuMemPoolCreate(&pool, &pp));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, 0));
    P(cuArrayCreate(&a, &ad));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, 0));
    P(cuCtxSynchronize());
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, 0));
    P(cuMemGetInfo(&f, &t));
    P(cuStreamSynchronize(s));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    P(cuMemAlloc(&p, 1));
    P(cuStreamEndCapture(s, &gr));
    V(gr != 0);
    P(cuStreamBeginCapture(s, 0));
    pthread_create(&th, 0, other_thread, c);
    pthread_join(th, 0);
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamBeginCapture(s, 1));
    pthread_create(&th, 0, other_thread, c);
    pthread_join(th, 0);
    P(cuStreamEndCapture(s, &gr));
}

static void memory_nodes(void) {
    memset(&ap, 0, sizeof ap);
    ap.poolProps.allocType = 1;
    ap.poolProps.location.type = 1;
    ap.bytesize = 1 << 20;
    P(cuGraphCreate(&gr, 0));
    P(cuGraphAddMemAllocNode(&na, gr, 0, 0, &ap));
    V(ap.dptr != 0);
    P(cuGraphAddMemFreeNode(&nf, gr, &na, 1, ap.dptr));
    P(cuGraphAddMemFreeNode(&nf, gr, &na, 1, ap.dptr));
    P(cuGraphDestroyNode(na));
    P(cuGraphInstantiateWithFlags(&ex, gr, 0));
    P(cuGraphLaunch(ex, s));
    P(cuStreamSynchronize(s));
    P(cuGraphExecDestroy(ex));
    P(cuGraphDestroy(gr));
}

static void sharing_and_pointers(void) {
    P(cuMemAlloc(&p, 1 << 20));
    P(cuIpcGetMemHandle(&ih, p));
    P(cuIpcOpenMemHandle(&q, ih, 1));
    P(cuMemAllocAsync(&r, 1 << 20, 0));
    P(cuIpcGetMemHandle(&ih, r));
    P(cuMemFreeAsync(r, 0));
    P(cuIpcCloseMemHandle(p));
    P(cuPointerGetAttribute(&ty, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    V(ty);
    P(cuPointerGetAttribute(&ty, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&ty));
    P(cuPointerGetAttribute(&n, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p + 100));
    V(n);
    P(cuMemGetAddressRange(&rb, &rs, p + 100));
    V(rs);
    P(cuMemGetAddressRange(&rb, &rs, (CUdeviceptr)&ty));
    if (fork() == 0) {
        P(cuMemAlloc(&p, 1));
        P(cuInit(0));
        _exit(0);
    }
    wait(NULL);
}

static void contexts(void) {
    P(cuCtxCreate_v2(&c2, 0, 0));
    P(cuMemAlloc(&q, 100));
    P(cuMemAllocAsync(&r, 100, 0));
    P(cuMemFree(q));
    P(cuMemAlloc(&q, 100));
    P(cuCtxSetCurrent(c));
    P(cuMemFree(q));
    P(cuCtxSetCurrent(c2));
    P(cuMemAlloc(&q, 100));
    P(cuCtxDestroy(c2));
    P(cuCtxGetCurrent(&cur));
    V(cur == 0);
    P(cuMemFree(r));
    P(cuCtxSetCurrent(c));
    P(cuMemFree(r));
    P(cuMemFree(q));
    P(cuCtxDestroy(c));
    P(cuMemAllocAsync(&r, 100, 0));
    P(cuDevicePrimaryCtxReset(0));
    P(cuMemFree(p));
    P(cuMemAlloc(&q, 1));
    P(cuCtxGetCurrent(&cur));
    V(cur == c);
    P(cuDevicePrimaryCtxGetState(0, &fl, &n));
    V(n);
    P(cuDevicePrimaryCtxRetain(&c2, 0));
    V(c2 == c);
    P(cuCtxSetCurrent(c2));
    P(cuMemFree(r));
    P(cuMemFree(p));
    P(cuMemAlloc(&p, 1));
    P(cuDevicePrimaryCtxRelease(0));
    P(cuDevicePrimaryCtxGetState(0, &fl, &n));
    V(n);
    P(cuMemAlloc(&p, 1));
    P(cuDevicePrimaryCtxRelease(0));
    P(cuDevicePrimaryCtxGetState(0, &fl, &n));
    V(n);
    P(cuDevicePrimaryCtxRetain(&c, 0));
    P(cuCtxSetCurrent(c));
    P(cuCtxAttach(&c, 0));
    P(cuCtxDetach(c));
}

static void events(void) {
    P(cuEventCreate(&ev, 0));
    P(cuStreamCreate(&s, 0));
    P(cuStreamCreate(&s2, 0));
    P(cuStreamBeginCapture(s, 0));
    P(cuStreamIsCapturing(0, &st));
    P(cuMemAllocAsync(&p, 100, 0));
    P(cuEventRecord(ev, s));
    P(cuStreamWaitEvent(s2, ev, 0));
    P(cuStreamIsCapturing(s2, &st));
    V(st);
    P(cuMemAllocAsync(&p, 100, s2));
    P(cuStreamEndCapture(s2, &gr));
    P(cuStreamEndCapture(s, &gr));
    P(cuStreamIsCapturing(s2, &st));
    V(st);
    P(cuStreamBeginCapture(s, 0));
    P(cuEventRecord(ev, s));
    P(cuStreamWaitEvent(s2, ev, 0));
    P(cuMemAllocAsync(&p, 100, s2));
    P(cuEventRecord(ev, s2));
    P(cuStreamWaitEvent(s, ev, 0));
    P(cuStreamEndCapture(s, &gr));
    P(cuGraphGetNodes(gr, 0, &nn));
    V(nn);
    P(cuCtxGetLimit(&lim, CU_LIMIT_MALLOC_HEAP_SIZE));
    V(lim);
    P(cuMemAlloc(&p, 100));
    P(cuStreamDestroy(s));
    P(cuMemAllocAsync(&q, 100, s2));
    P(cuStreamDestroy(s2));
    P(cuMemFree(q));
    memset(&ed, 0, sizeof ed);
    P(cuImportExternalMemory(&em, &ed));
    P(cuDestroyExternalMemory(0));
}

int main(void) {
    before_and_after_init();
    host_and_managed();
    pitched();
    stream_ordered();
    arrays();
    vmm();
    captures();
    memory_nodes();
    sharing_and_pointers();
    contexts();
    events();
    return 0;
}
