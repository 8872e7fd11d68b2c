// Two devices: what the process takes on each, with peers; and two processes that share a block which its owner frees first.
#include "steps.h"

#include <sys/wait.h>

static CUcontext contexts[2];

static void use(int device) { OK(cuCtxSetCurrent(contexts[device])); }

// FACT on0_NAME and on1_NAME: what NVML counts on each device.
static void step_on_both(const char *name) {
    char label[64], key[72];
    snprintf(label, sizeof label, "at_%03d_%s", steps++, name);
    for (int device = 0; device < 2; device++) {
        snprintf(key, sizeof key, "on%d_%s", device, label);
        fact(key, (uint64_t)counted(device));
    }
    request_snapshot(label);
}

static void need_two_devices(void) {
    int count;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    if (count < 2) unsupported("a second GPU");
}

static CUmemGenericAllocationHandle create_on(int device, size_t bytes) {
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handle;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    OK(cuMemCreate(&handle, bytes, &properties, 0)); // site: devices_physical
    return handle;
}

static CUmemAccessDesc access_from(int device) {
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

CASE(amounts) {
    need_two_devices();
    CUdeviceptr first[4], second[7], range, pooled[2];
    CUstream streams[2];
    // The second device first.
    OK(cuDevicePrimaryCtxRetain(&contexts[1], 1)); // site: devices_context_1
    step_on_both("one_context");
    OK(cuDevicePrimaryCtxRetain(&contexts[0], 0)); // site: devices_context_0
    step_on_both("two_contexts");
    use(0);
    for (int i = 0; i < 4; i++) OK(cuMemAlloc(&first[i], (size_t)(10 + 2 * i) * MIB)); // site: devices_block_0
    step_on_both("blocks_0");
    use(1);
    for (int i = 0; i < 7; i++) OK(cuMemAlloc(&second[i], (size_t)(30 + 4 * i) * MIB)); // site: devices_block_1
    step_on_both("blocks_1");
    for (int device = 0; device < 2; device++) {
        use(device);
        OK(cuStreamCreate(&streams[device], CU_STREAM_NON_BLOCKING));
    }
    step_on_both("streams");

    int to_first = 0, to_second = 0;
    OK(cuDeviceCanAccessPeer(&to_second, 0, 1));
    OK(cuDeviceCanAccessPeer(&to_first, 1, 0));
    fact("peers", (uint64_t)(to_first && to_second));
    if (to_first && to_second) {
        use(0);
        OK(cuCtxEnablePeerAccess(contexts[1], 0));
        step_on_both("peer_0_to_1");
        use(1);
        OK(cuCtxEnablePeerAccess(contexts[0], 0));
        step_on_both("peer_1_to_0");
    }
    OK(cuMemcpyPeer(first[0], contexts[0], second[0], contexts[1], 8 * MIB));
    OK(cuCtxSynchronize());
    step_on_both("copied");

    for (int device = 0; device < 2; device++) {
        use(device);
        OK(cuMemAllocAsync(&pooled[device], (size_t)(device + 1) * 40 * MIB, streams[device])); // site: devices_pool
        OK(cuStreamSynchronize(streams[device]));
    }
    step_on_both("pools");
    if (to_first && to_second) {
        CUmemoryPool pool;
        CUmemAccessDesc access = access_from(0);
        OK(cuDeviceGetDefaultMemPool(&pool, 1));
        OK(cuMemPoolSetAccess(pool, &access, 1));
        step_on_both("pool_1_from_0");
    }
    CUmemGenericAllocationHandle physical = create_on(1, 64 * MIB);
    OK(cuMemAddressReserve(&range, 64 * MIB, 0, 0, 0));
    OK(cuMemMap(range, 64 * MIB, 0, physical, 0));
    CUmemAccessDesc access[2] = {access_from(1), access_from(0)};
    OK(cuMemSetAccess(range, 64 * MIB, access, to_second ? 2 : 1));
    step_on_both("physical_1");

    use(0);
    OK(cuMemFree(first[1]));
    step_on_both("freed_0");
    use(1);
    OK(cuMemFree(second[2]));
    step_on_both("freed_1");
}

// ---- memory that two processes share ----

static int to_importer[2], to_exporter[2];

static void tell(const int *pipe, const void *data, size_t size) { OK(write(pipe[1], data, size) != (ssize_t)size); }
static void hear(const int *pipe, void *data, size_t size) {
    if (read(pipe[0], data, size) != (ssize_t)size) failed("read", 0, __FILE__, __LINE__);
}

static void start(void) {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
    use(0);
}

// FACT all_NAME: what NVML counts for both processes.
static void step_of_two(const char *name) {
    char key[64];
    snprintf(key, sizeof key, "all_%s", name);
    fact(key, (uint64_t)counted_in_all(0));
    step(name);
}

static void import_it(void) {
    CUipcMemHandle handle;
    CUdeviceptr block;
    char word;
    start();
    step_of_two("importer_context");
    tell(to_exporter, "r", 1);
    hear(to_importer, &handle, sizeof handle);
    OK(cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)); // site: devices_import
    step_of_two("importer_opened");
    tell(to_exporter, "o", 1);
    hear(to_importer, &word, 1);
    step_of_two("importer_alone");
    OK(cuIpcCloseMemHandle(block));
    step_of_two("importer_closed");
    tell(to_exporter, "c", 1);
    hear(to_importer, &word, 1);
}

// The importer was forked before CUDA.
CASE(shared) {
    int status;
    OK(pipe(to_importer));
    OK(pipe(to_exporter));
    pid_t child = fork();
    if (child == 0) {
        // The ends that it does not use, so that it does not wait for a process that has failed.
        close(to_importer[1]);
        import_it();
        exit(0);
    }
    close(to_exporter[1]);
    fact("exporter", (uint64_t)getpid());
    fact("importer", (uint64_t)child);
    fact("shared_bytes", 300 * (uint64_t)MIB);
    CUdeviceptr block;
    CUipcMemHandle handle;
    char word;
    start();
    step_of_two("exporter_context");
    hear(to_exporter, &word, 1);
    OK(cuMemAlloc(&block, 300 * (size_t)MIB)); // site: devices_export
    OK(cuIpcGetMemHandle(&handle, block));
    step_of_two("exporter_exported");
    tell(to_importer, &handle, sizeof handle);
    hear(to_exporter, &word, 1);
    OK(cuMemFree(block));
    step_of_two("exporter_freed");
    tell(to_importer, "f", 1);
    hear(to_exporter, &word, 1);
    step_of_two("exporter_last");
    tell(to_importer, "q", 1);
    if (waitpid(child, &status, 0) != child || status != 0) failed("importer", status, __FILE__, __LINE__);
}

int main(int argc, char **argv) {
    static const Case cases[] = {ENTRY(amounts), ENTRY(shared), {NULL, NULL}};
    return run_case(cases, argc, argv);
}
