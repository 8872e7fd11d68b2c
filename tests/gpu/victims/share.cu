// Memory shared between a producer (the parent) and a consumer (forked before CUDA): it counts in the producer alone.
#include "victim.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/socket.h>
#include <sys/wait.h>

static uint64_t number(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

// ---- two processes and a socket ----

static void send_bytes(int socket, const void *data, size_t size) { OK(write(socket, data, size) != (ssize_t)size); }
static void receive_bytes(int socket, void *data, size_t size) { OK(read(socket, data, size) != (ssize_t)size); }

static void send_fd(int socket, int fd) {
    char control[CMSG_SPACE(sizeof fd)] = {}, byte = 'x';
    iovec vector = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    OK(sendmsg(socket, &message, 0) != 1);
}

static int receive_fd(int socket) {
    int fd = -1;
    char control[CMSG_SPACE(sizeof fd)] = {}, byte;
    iovec vector = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    OK(recvmsg(socket, &message, 0) != 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

// Runs the consumer in a child and the producer here; the producer outlives the consumer.
static void between_processes(void (*producer)(int), void (*consumer)(int)) {
    int sockets[2], status;
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    pid_t child = fork();
    if (child == 0) {
        close(sockets[0]);
        consumer(sockets[1]);
        exit(0);
    }
    close(sockets[1]);
    fact("consumer", child);
    producer(sockets[0]);
    if (waitpid(child, &status, 0) != child || status != 0) failed("consumer", status, __FILE__, __LINE__);
}

// ---- cudaIpc ----

static void ipc_producer(int socket) {
    void *pointer;
    cudaIpcMemHandle_t handle;
    OK(cudaMalloc(&pointer, 1 << 20)); // site: ipc_producer
    OK(cudaMemset(pointer, 7, 1 << 20));
    OK(cudaDeviceSynchronize());
    OK(cudaIpcGetMemHandle(&handle, pointer));
    send_bytes(socket, &handle, sizeof handle);
    live("ipc_producer", "device", number(pointer), 1 << 20, 1 << 20);
    char done;
    receive_bytes(socket, &done, 1);
}

static void *open_twice(int socket, cudaIpcMemHandle_t *handle) {
    void *first, *second;
    receive_bytes(socket, handle, sizeof *handle);
    OK(cudaIpcOpenMemHandle(&first, *handle, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaIpcOpenMemHandle(&second, *handle, cudaIpcMemLazyEnablePeerAccess));
    if (first != second) unsupported("one address for an IPC handle opened twice");
    unsigned char byte;
    OK(cudaMemcpy(&byte, first, 1, cudaMemcpyDeviceToHost));
    if (byte != 7) failed("reading the producer's memory", byte, __FILE__, __LINE__);
    fact("opened", number(first));
    return first;
}

static void ipc_leaks(int socket) {
    cudaIpcMemHandle_t handle;
    open_twice(socket, &handle);
    send_bytes(socket, "d", 1);
}

static void ipc_closes(int socket) {
    cudaIpcMemHandle_t handle;
    void *pointer = open_twice(socket, &handle);
    OK(cudaIpcCloseMemHandle(pointer));
    OK(cudaIpcCloseMemHandle(pointer));
    send_bytes(socket, "d", 1);
}

// Opened twice: one row with two references and 0 bytes. Closed as often as opened: no row.
CASE(ipc) { between_processes(ipc_producer, ipc_leaks); }
CASE(ipc_closed) { between_processes(ipc_producer, ipc_closes); }

// ---- VMM handles as file descriptors ----

static void driver_context(void) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

static CUmemGenericAllocationHandle create_shareable(size_t *bytes) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle;
    OK(cuMemGetAllocationGranularity(bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemCreate(&handle, *bytes, &properties, 0)); // site: vmm_shared
    return handle;
}

static int export_fd(CUmemGenericAllocationHandle handle) {
    int fd;
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return fd;
}

static CUmemGenericAllocationHandle import_fd(int fd) {
    CUmemGenericAllocationHandle handle;
    OK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    return handle;
}

static void vmm_producer(int socket) {
    size_t bytes;
    driver_context();
    CUmemGenericAllocationHandle handle = create_shareable(&bytes);
    int fd = export_fd(handle);
    send_fd(socket, fd);
    close(fd);
    live("vmm_shared", "physical", handle, bytes, bytes);
    char done;
    receive_bytes(socket, &done, 1);
}

static void vmm_consumer(int socket) {
    driver_context();
    CUmemGenericAllocationHandle handle = import_fd(receive_fd(socket));
    CUdeviceptr address;
    size_t bytes = 2 << 20;
    OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    OK(cuMemMap(address, bytes, 0, handle, 0));
    fact("imported", handle);
    fact("mapped", address);
    send_bytes(socket, "d", 1);
}

// The consumer's import and mapping hold 0 bytes; the memory is the producer's.
CASE(vmm_fd) { between_processes(vmm_producer, vmm_consumer); }

// Exported and imported within one process, the memory is counted once.
CASE(vmm_fd_within) {
    size_t bytes;
    driver_context();
    CUmemGenericAllocationHandle handle = create_shareable(&bytes);
    CUmemGenericAllocationHandle imported = import_fd(export_fd(handle));
    fact("physical_bytes", bytes);
    fact("created", handle);
    fact("imported", imported);
}

// Exported, imported within one process, and both released: nothing is left.
CASE(vmm_fd_within_released) {
    size_t bytes;
    driver_context();
    CUmemGenericAllocationHandle handle = create_shareable(&bytes);
    CUmemGenericAllocationHandle imported = import_fd(export_fd(handle));
    OK(cuMemRelease(imported));
    OK(cuMemRelease(handle));
}

// ---- memory pools ----

static void need_shareable_pools(void) {
    int types = 0;
    OK(cudaDeviceGetAttribute(&types, cudaDevAttrMemoryPoolSupportedHandleTypes, 0));
    if (!(types & cudaMemHandleTypePosixFileDescriptor)) unsupported("memory pools that can be shared by file descriptor");
}

static void pool_producer(int socket) {
    need_shareable_pools();
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool;
    cudaMemPoolPtrExportData exported;
    void *pointer;
    int fd;
    OK(cudaMemPoolCreate(&pool, &properties));
    OK(cudaMallocFromPoolAsync(&pointer, 1 << 20, pool, 0)); // site: pool_producer
    OK(cudaStreamSynchronize(0));
    OK(cudaMemPoolExportToShareableHandle(&fd, pool, cudaMemHandleTypePosixFileDescriptor, 0));
    OK(cudaMemPoolExportPointer(&exported, pointer));
    send_fd(socket, fd);
    send_bytes(socket, &exported, sizeof exported);
    live("pool_producer", "async", number(pointer), 1 << 20, 1 << 20);
    char done;
    receive_bytes(socket, &done, 1);
}

static void pool_consumer(int socket) {
    need_shareable_pools();
    cudaMemPool_t pool;
    cudaMemPoolPtrExportData exported;
    void *pointer;
    int fd = receive_fd(socket);
    receive_bytes(socket, &exported, sizeof exported);
    OK(cudaMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)fd, cudaMemHandleTypePosixFileDescriptor, 0));
    OK(cudaMemPoolImportPointer(&pointer, pool, &exported));
    fact("imported", number(pointer));
    send_bytes(socket, "d", 1);
}

static void pool_consumer_frees(int socket) {
    need_shareable_pools();
    cudaMemPool_t pool;
    cudaMemPoolPtrExportData exported;
    void *pointer;
    int fd = receive_fd(socket);
    receive_bytes(socket, &exported, sizeof exported);
    OK(cudaMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)fd, cudaMemHandleTypePosixFileDescriptor, 0));
    OK(cudaMemPoolImportPointer(&pointer, pool, &exported));
    OK(cudaFreeAsync(pointer, 0));
    OK(cudaStreamSynchronize(0));
    OK(cudaMemPoolDestroy(pool));
    send_bytes(socket, "d", 1);
}

// A pointer imported from another process's pool holds 0 bytes; freeing it removes its row.
CASE(pool_fd) { between_processes(pool_producer, pool_consumer); }
CASE(pool_fd_freed) { between_processes(pool_producer, pool_consumer_frees); }

static const Case cases[] = {
    ENTRY(ipc), ENTRY(ipc_closed), ENTRY(vmm_fd), ENTRY(vmm_fd_within), ENTRY(vmm_fd_within_released), ENTRY(pool_fd), ENTRY(pool_fd_freed), {NULL, NULL},
};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
