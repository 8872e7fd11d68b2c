// Programs that make the driver take memory in every known way. At each step they print what NVML says of the process and
// request a snapshot of that name: the segments in it must be as many bytes.
#include "steps.h"

#include <assert.h>
#include <cuda.h>
#include <cuda_runtime.h>

static void start(void) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0)); // site: segments_context
    OK(cuCtxSetCurrent(context));
    step("context");
}

// ---- kernels ----

__global__ void empty(void) {}

template <int BYTES> __global__ void local_memory(int *out, int at) {
    volatile char room[BYTES];
    for (int i = 0; i < BYTES; i += 64) room[i] = (char)(i + at);
    *out = room[at % BYTES];
}

__global__ void asserts(int value) { assert(value > 0); }
__global__ void prints(int value) {
    if (value == 12345) printf("%d\n", value);
}
__global__ void allocates(int bytes) {
    void *block = malloc(bytes);
    if (block) free(block);
}
__device__ char global_array[10 * MIB];
__global__ void uses_array(int at) { global_array[at] = 1; }

static void synchronize(const char *name) {
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    step(name);
}

// ---- contexts and limits ----

static CUcontext create_context(void) {
    CUcontext context;
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&context, NULL, 0, 0));
#else
    OK(cuCtxCreate(&context, 0, 0));
#endif
    return context;
}

CASE(contexts) {
    start();
    CUcontext second = create_context();
    step("second");
    CUcontext third = create_context();
    step("third");
    OK(cuCtxDestroy(second));
    step("second_destroyed");
    OK(cuCtxDestroy(third));
    step("third_destroyed");
    OK(cuDevicePrimaryCtxReset(0));
    step("reset");
    start();
}

CASE(limits) {
    start();
    const size_t stacks[] = {0, 256, 1024, 4096, 16384, 65536, 1024};
    for (size_t stack : stacks) {
        char name[32];
        snprintf(name, sizeof name, "stack_%zu", stack);
        OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack));
        step(name);
    }
    OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 32 * MIB));
    step("printf_fifo");
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
    step("heap_limit");
    allocates<<<1, 1>>>(64);
    synchronize("heap_used");
}

CASE(kernels) {
    start();
    int *out;
    empty<<<1, 1>>>();
    synchronize("empty");
    OK(cudaMalloc(&out, 4));
    step("malloc");
    local_memory<2048><<<1, 1>>>(out, 1);
    synchronize("local_2k");
    local_memory<16384><<<1, 1>>>(out, 1);
    synchronize("local_16k");
    local_memory<65536><<<1, 1>>>(out, 1);
    synchronize("local_64k");
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
    step("stack_again");
    asserts<<<1, 1>>>(1);
    synchronize("assert");
    prints<<<1, 1>>>(1);
    synchronize("printf");
    uses_array<<<1, 1>>>(1);
    synchronize("global_array");
}

// ---- modules ----

static void write_ptx(char *text, size_t room, int number, int mib) {
    snprintf(text, room,
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 4 .b8 big%d[%d];\n"
        ".visible .entry kernel%d(.param .u64 p) { .reg .b64 %%rd<3>; .reg .b32 %%r<2>; ld.param.u64 %%rd1, [p]; "
        "mov.u32 %%r1, %d; st.global.u32 [%%rd1], %%r1; ret; }\n",
        number, mib * MIB + 4, number, number);
}

CASE(modules) {
    start();
    CUmodule modules[20];
    for (int i = 0; i < 20; i++) {
        char text[1024], name[32];
        write_ptx(text, sizeof text, i, i);
        OK(cuModuleLoadData(&modules[i], text)); // site: segments_module
        CUfunction function;
        CUdeviceptr out;
        OK(cuMemAlloc(&out, 4));
        snprintf(name, sizeof name, "kernel%d", i);
        OK(cuModuleGetFunction(&function, modules[i], name));
        void *arguments[] = {&out};
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
        OK(cuCtxSynchronize());
        snprintf(name, sizeof name, "module_%d", i);
        step(name);
        OK(cuMemFree(out));
    }
    for (int i = 0; i < 20; i++) OK(cuModuleUnload(modules[i]));
    step("unloaded");
}

// ---- streams, events, graphs ----

CASE(streams) {
    start();
    static CUstream streams[300];
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 300; i++) {
            OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING)); // site: segments_stream
            if (i % 50 == 49) step("streams");
        }
        for (int i = 0; i < 300; i++) OK(cuStreamDestroy(streams[i]));
        step("destroyed");
    }
    static CUevent events[1000];
    for (int i = 0; i < 1000; i++) OK(cuEventCreate(&events[i], 0));
    step("events");
}

CASE(graphs) {
    start();
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    static cudaGraphExec_t execs[200];
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 200; i++) {
            cudaGraph_t graph;
            OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
            for (int node = 0; node < 50; node++) empty<<<1, 1, 0, stream>>>();
            OK(cudaStreamEndCapture(stream, &graph));
            OK(cudaGraphInstantiate(&execs[i], graph, 0)); // site: segments_graph
            OK(cudaGraphDestroy(graph));
            OK(cudaGraphLaunch(execs[i], stream));
            if (i % 40 == 39) synchronize("graphs");
        }
        for (int i = 0; i < 200; i++) OK(cudaGraphExecDestroy(execs[i]));
        synchronize("destroyed");
    }
}

// ---- memory ----

CASE(pools) {
    start();
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    void *blocks[40];
    for (int i = 0; i < 40; i++) {
        OK(cudaMallocAsync(&blocks[i], (size_t)(i + 1) * MIB, stream));
        if (i % 10 == 9) synchronize("allocated");
    }
    for (int i = 0; i < 40; i += 2) OK(cudaFreeAsync(blocks[i], stream));
    synchronize("half_freed");
    cudaMemPool_t pool, own;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolTrimTo(pool, 0));
    step("trimmed");
    cudaMemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    OK(cudaMemPoolCreate(&own, &properties));
    step("pool");
    void *block;
    OK(cudaMallocFromPoolAsync(&block, 1, own, stream));
    synchronize("pool_used");
    OK(cudaFreeAsync(block, stream));
    OK(cudaMemPoolDestroy(own));
    synchronize("pool_destroyed");
}

CASE(arrays) {
    start();
    cudaArray_t arrays[6];
    cudaChannelFormatDesc one = cudaCreateChannelDesc<float>(), four = cudaCreateChannelDesc<float4>();
    OK(cudaMallocArray(&arrays[0], &one, 64, 64)); // site: segments_array
    step("64x64");
    OK(cudaMallocArray(&arrays[1], &four, 1000, 0));
    step("1000_float4");
    OK(cudaMallocArray(&arrays[2], &one, 100000, 0));
    step("100000");
    OK(cudaMallocArray(&arrays[3], &one, 1000, 1000));
    step("1000x1000");
    OK(cudaMalloc3DArray(&arrays[4], &one, make_cudaExtent(100, 100, 100)));
    step("100x100x100");
    cudaMipmappedArray_t mipmap;
    OK(cudaMallocMipmappedArray(&mipmap, &one, make_cudaExtent(512, 512, 0), 8));
    step("mipmap");
    for (int i = 0; i < 5; i++) OK(cudaFreeArray(arrays[i]));
    OK(cudaFreeMipmappedArray(mipmap));
    step("freed");
}

CASE(churn) {
    start();
    static CUdeviceptr live[512];
    unsigned long long seed = 1;
    for (int i = 0; i < 24000; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        int at = (int)(seed >> 33 & 511);
        if (live[at]) {
            OK(cuMemFree(live[at]));
            live[at] = 0;
        } else {
            size_t bytes = 1 + (size_t)((seed >> 20) % (seed >> 60 & 1 ? 8 * MIB : 200000));
            OK(cuMemAlloc(&live[at], bytes)); // site: segments_churn
        }
        if (i % 1500 == 1499) step("churn");
    }
    for (int i = 0; i < 512; i++)
        if (live[i]) OK(cuMemFree(live[i]));
    step("freed");
}

CASE(large) {
    start();
    size_t available, total;
    OK(cuMemGetInfo(&available, &total));
    CUdeviceptr block, refused;
    OK(cuMemAlloc(&block, available / 2));
    step("half");
    if (cuMemAlloc(&refused, available) == CUDA_SUCCESS) failed("cuMemAlloc", 0, __FILE__, __LINE__);
    step("refused");
    OK(cuMemFree(block));
    step("freed");
}

CASE(vmm) {
    start();
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemGenericAllocationHandle handles[10];
    CUdeviceptr range;
    const size_t bytes = 4 * MIB;
    OK(cuMemAddressReserve(&range, 10 * bytes, 0, 0, 0));
    for (int i = 0; i < 10; i++) {
        OK(cuMemCreate(&handles[i], bytes, &properties, 0)); // site: segments_vmm
        OK(cuMemMap(range + i * bytes, bytes, 0, handles[i], 0));
    }
    OK(cuMemSetAccess(range, 10 * bytes, &access, 1));
    step("mapped");
    for (int i = 0; i < 10; i++) OK(cuMemRelease(handles[i]));
    step("released");
    OK(cuMemUnmap(range, 10 * bytes));
    step("unmapped");
}

CASE(host) {
    start();
    void *pinned, *managed;
    OK(cudaMallocHost(&pinned, 100 * MIB));
    step("pinned");
    OK(cudaFreeHost(pinned));
    step("pinned_freed");
    OK(cudaMallocManaged(&managed, 64 * MIB));
    step("managed");
    OK(cudaMemset(managed, 0, 64 * MIB));
    synchronize("managed_on_the_device");
    OK(cudaFree(managed));
    step("managed_freed");
}

#if CUDA_VERSION >= 12040
CASE(green) {
    start();
    CUdevResource all, part;
    CUdevResourceDesc description;
    unsigned groups = 1;
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 16));
    OK(cuDevResourceGenerateDesc(&description, &part, 1));
    for (int turn = 0; turn < 3; turn++) {
        CUgreenCtx contexts[8];
        for (int i = 0; i < 8; i++) OK(cuGreenCtxCreate(&contexts[i], description, 0, CU_GREEN_CTX_DEFAULT_STREAM)); // site: segments_green
        step("green");
        for (int i = 0; i < 8; i++) OK(cuGreenCtxDestroy(contexts[i]));
        step("destroyed");
    }
}
#else
CASE(green) { unsupported("green contexts, which CUDA 12.4 introduced"); }
#endif

int main(int argc, char **argv) {
    static const Case cases[] = {
        ENTRY(contexts), ENTRY(limits), ENTRY(kernels), ENTRY(modules), ENTRY(streams), ENTRY(graphs), ENTRY(pools),
        ENTRY(arrays), ENTRY(churn), ENTRY(large), ENTRY(vmm), ENTRY(host), ENTRY(green), {NULL, NULL},
    };
    return run_case(cases, argc, argv);
}
