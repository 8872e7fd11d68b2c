// Programs on the CUDA runtime: every kind of allocation, and every way in which a process starts and ends.
// Built with shared and with static cudart, with -rdynamic, stripped, and with a per-thread default stream.
#include "victim.h"

#include <cuda_runtime.h>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <sys/wait.h>
#include <vector>

static uint64_t number(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

// ---- every kind of allocation: one of each is kept, one of each is freed ----

CASE(cudaMalloc) {
    void *kept, *freed, *none = (void *)1;
    OK(cudaMalloc(&kept, 1000)); // site: cudaMalloc
    OK(cudaMalloc(&freed, 2000));
    OK(cudaFree(freed));
    OK(cudaMalloc(&none, 0)); // returns NULL and allocates nothing
    OK(cudaFree(NULL));
    live("cudaMalloc", "device", number(kept), 1000, 1000);
}

CASE(cudaMallocPitch) {
    void *kept, *freed;
    size_t pitch;
    OK(cudaMallocPitch(&freed, &pitch, 100, 20));
    OK(cudaMallocPitch(&kept, &pitch, 1000, 30)); // site: cudaMallocPitch
    OK(cudaFree(freed));
    live("cudaMallocPitch", "pitched", number(kept), pitch * 30, 1000 * 30);
}

CASE(cudaMalloc3D) {
    cudaPitchedPtr kept, freed;
    OK(cudaMalloc3D(&kept, make_cudaExtent(1000, 7, 5))); // site: cudaMalloc3D
    OK(cudaMalloc3D(&freed, make_cudaExtent(100, 3, 2)));
    OK(cudaFree(freed.ptr));
    live("cudaMalloc3D", "pitched", number(kept.ptr), kept.pitch * 7 * 5, 1000 * 7 * 5);
}

CASE(cudaMallocArray) {
    cudaArray_t kept, freed;
    cudaChannelFormatDesc floats = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
    OK(cudaMallocArray(&kept, &floats, 64, 32)); // site: cudaMallocArray
    OK(cudaMallocArray(&freed, &floats, 32, 32));
    OK(cudaFreeArray(freed));
    OK(cudaFreeArray(NULL));
    live("cudaMallocArray", "array", number(kept), 64 * 32 * 4, 64 * 32 * 4);
}

CASE(cudaMalloc3DArray) {
    cudaArray_t kept, freed;
    cudaChannelFormatDesc bytes4 = cudaCreateChannelDesc(8, 8, 8, 8, cudaChannelFormatKindUnsigned);
    OK(cudaMalloc3DArray(&kept, &bytes4, make_cudaExtent(16, 8, 4), 0)); // site: cudaMalloc3DArray
    OK(cudaMalloc3DArray(&freed, &bytes4, make_cudaExtent(8, 8, 8), 0));
    OK(cudaFreeArray(freed));
    live("cudaMalloc3DArray", "array", number(kept), 16 * 8 * 4 * 4, 16 * 8 * 4 * 4);
}

CASE(cudaMallocMipmappedArray) {
    cudaMipmappedArray_t kept, freed;
    cudaChannelFormatDesc floats = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
    OK(cudaMallocMipmappedArray(&kept, &floats, make_cudaExtent(64, 64, 0), 7)); // site: cudaMallocMipmappedArray
    OK(cudaMallocMipmappedArray(&freed, &floats, make_cudaExtent(32, 32, 0), 2));
    OK(cudaFreeMipmappedArray(freed));
    uint64_t all_levels = 4 * (64 * 64 + 32 * 32 + 16 * 16 + 8 * 8 + 4 * 4 + 2 * 2 + 1);
    live("cudaMallocMipmappedArray", "mipmapped", number(kept), all_levels, all_levels);
}

CASE(cudaMallocHost) {
    void *kept, *freed;
    OK(cudaMallocHost(&kept, 5000)); // site: cudaMallocHost
    OK(cudaMallocHost(&freed, 6000));
    OK(cudaFreeHost(freed));
    live("cudaMallocHost", "pinned", number(kept), 5000, 5000);
}

CASE(cudaHostAlloc) {
    void *kept, *freed;
    OK(cudaHostAlloc(&kept, 7000, cudaHostAllocMapped | cudaHostAllocPortable)); // site: cudaHostAlloc
    OK(cudaHostAlloc(&freed, 8000, cudaHostAllocWriteCombined));
    OK(cudaFreeHost(freed));
    live("cudaHostAlloc", "pinned", number(kept), 7000, 7000);
}

CASE(cudaHostRegister) {
    char *kept = (char *)aligned_alloc(65536, 65536), *freed = (char *)aligned_alloc(65536, 65536);
    memset(kept, 1, 65536);
    memset(freed, 1, 65536);
    OK(cudaHostRegister(kept, 65536, cudaHostRegisterDefault)); // site: cudaHostRegister
    OK(cudaHostRegister(freed, 65536, cudaHostRegisterDefault));
    OK(cudaHostUnregister(freed));
    live("cudaHostRegister", "registered", number(kept), 65536, 65536);
}

CASE(cudaMallocManaged) {
    void *kept, *freed;
    OK(cudaMallocManaged(&kept, 90000, cudaMemAttachGlobal)); // site: cudaMallocManaged
    OK(cudaMallocManaged(&freed, 80000, cudaMemAttachGlobal));
    OK(cudaFree(freed));
    live("cudaMallocManaged", "managed", number(kept), 90000, 90000);
}

CASE(cudaMallocAsync) {
    void *kept, *freed, *freed_by_cudaFree;
    OK(cudaMallocAsync(&kept, 11000, 0)); // site: cudaMallocAsync
    OK(cudaMallocAsync(&freed, 12000, 0));
    OK(cudaFreeAsync(freed, 0));
    OK(cudaMallocAsync(&freed_by_cudaFree, 13000, 0));
    OK(cudaStreamSynchronize(0));
    OK(cudaFree(freed_by_cudaFree));
    live("cudaMallocAsync", "async", number(kept), 11000, 11000);
}

CASE(cudaMallocFromPoolAsync) {
    int device;
    OK(cudaGetDevice(&device));
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    cudaMemPool_t pool, destroyed;
    cudaStream_t stream;
    void *kept, *freed;
    OK(cudaMemPoolCreate(&pool, &properties));
    OK(cudaMemPoolCreate(&destroyed, &properties));
    OK(cudaMemPoolDestroy(destroyed));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMallocFromPoolAsync(&kept, 14000, pool, stream)); // site: cudaMallocFromPoolAsync
    OK(cudaMallocFromPoolAsync(&freed, 15000, pool, stream));
    OK(cudaFreeAsync(freed, stream));
    OK(cudaStreamSynchronize(stream));
    live("cudaMallocFromPoolAsync", "async", number(kept), 14000, 14000);
    fact("pool", number(pool));
    fact("pool_stream", number(stream));
}

CASE(kinds) {
    case_cudaMalloc();
    case_cudaMallocPitch();
    case_cudaMalloc3D();
    case_cudaMallocArray();
    case_cudaMalloc3DArray();
    case_cudaMallocMipmappedArray();
    case_cudaMallocHost();
    case_cudaHostAlloc();
    case_cudaHostRegister();
    case_cudaMallocManaged();
    case_cudaMallocAsync();
    case_cudaMallocFromPoolAsync();
}

// A program that frees everything it allocates is clean.
CASE(clean) {
    void *a, *b, *c;
    OK(cudaMalloc(&a, 1000));
    OK(cudaMallocAsync(&b, 2000, 0));
    OK(cudaMallocHost(&c, 3000));
    OK(cudaFreeAsync(b, 0));
    OK(cudaFree(a));
    OK(cudaFreeHost(c));
}

// ---- streams ----

// An allocation has the stream it was made on: legacy default, per-thread default, or a handle.
CASE(streams) {
    void *pointer;
    OK(cudaMallocAsync(&pointer, 1000, cudaStreamLegacy));
    live("legacy", "async", number(pointer), 1000, 1000);
    OK(cudaMallocAsync(&pointer, 2000, cudaStreamPerThread));
    live("per_thread", "async", number(pointer), 2000, 2000);
    for (int i = 0; i < 3; i++) {
        cudaStream_t stream;
        OK(cudaStreamCreateWithFlags(&stream, i == 0 ? cudaStreamDefault : cudaStreamNonBlocking));
        OK(cudaMallocAsync(&pointer, 3000 + i, stream));
        char label[16];
        snprintf(label, sizeof label, "stream_%d", i);
        live(label, "async", number(pointer), 3000 + i, 3000 + i);
        fact(label, number(stream));
    }
    OK(cudaDeviceSynchronize());
}

// After cudaDeviceSetMemPool, a cudaMallocAsync without a pool argument still has the pool it came from.
CASE(current_pool) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool;
    void *pointer;
    OK(cudaMemPoolCreate(&pool, &properties));
    OK(cudaDeviceSetMemPool(0, pool));
    OK(cudaMallocAsync(&pointer, 4000, 0));
    OK(cudaStreamSynchronize(0));
    live("current_pool", "async", number(pointer), 4000, 4000);
    fact("pool", number(pool));
}

// ---- threads ----

enum { THREADS = 16, CYCLES = 200, LEAKS = 5 };

static void *worker(void *argument) {
    long index = (long)argument;
    char name[16];
    snprintf(name, sizeof name, "worker-%02ld", index);
    pthread_setname_np(pthread_self(), name);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < CYCLES; i++) {
        void *plain, *ordered;
        OK(cudaMalloc(&plain, 256 + 16 * i));
        OK(cudaMallocAsync(&ordered, 512 + 16 * i, stream));
        OK(cudaFree(plain));
        OK(cudaFreeAsync(ordered, stream));
        if (i % (CYCLES / LEAKS) == 0) {
            OK(cudaMalloc(&plain, 4096 + 512 * index)); // site: threads
            live("threads", "device", number(plain), 4096 + 512 * index, 4096 + 512 * index);
        }
    }
    OK(cudaStreamSynchronize(stream));
    return NULL;
}

// 16 threads allocate and free at once and keep 5 blocks each: exactly those 80 are live, each with its thread's name.
CASE(threads) {
    OK(cudaFree(0));
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) OK(pthread_create(&threads[i], NULL, worker, (void *)i));
    for (int i = 0; i < THREADS; i++) OK(pthread_join(threads[i], NULL));
}

static void *free_it(void *pointer) {
    OK(cudaFree(pointer));
    return NULL;
}

// Memory freed on another thread than the one that allocated it is not a leak.
CASE(freed_elsewhere) {
    void *pointer;
    pthread_t other;
    OK(cudaMalloc(&pointer, 1 << 20));
    OK(pthread_create(&other, NULL, free_it, pointer));
    OK(pthread_join(other, NULL));
}

// ---- ways to end ----

static void allocate_many(void) {
    for (int i = 0; i < 500; i++) {
        void *pointer;
        OK(cudaMalloc(&pointer, 512)); // site: many
        live("many", "device", number(pointer), 512, 512);
    }
}

// However abruptly the process ends, every earlier allocation is in the recording.
CASE(sigkill) { allocate_many(); raise(SIGKILL); }
CASE(underscore_exit) { allocate_many(); _exit(5); }
CASE(aborts) { allocate_many(); abort(); }
CASE(quick_exits) { allocate_many(); quick_exit(6); }
CASE(segfault) { allocate_many(); *(volatile int *)8 = 1; }

struct FreesLate {
    void *pointer = NULL;
    ~FreesLate() {
        if (pointer) say("FACT %d late_free %#x", getpid(), cudaFree(pointer));
    }
};
static FreesLate frees_late;

// A static destructor that frees after CUDA may have shut down: no crash, and what the driver freed is not a leak.
CASE(static_destructor) {
    OK(cudaMalloc(&frees_late.pointer, 3 << 20));
    fact("late_address", number(frees_late.pointer));
}

// ---- fork and exec ----

// A child forked before CUDA has its own recording, separate from its parent's.
CASE(fork_before) {
    void *pointer;
    pid_t child = fork();
    if (child == 0) {
        OK(cudaMalloc(&pointer, 3000)); // site: child
        live("child", "device", number(pointer), 3000, 3000);
        exit(0);
    }
    OK(cudaMalloc(&pointer, 5000)); // site: parent
    live("parent", "device", number(pointer), 5000, 5000);
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) exit(95);
}

// In a child forked after CUDA was initialized every call fails; the child leaks nothing and the parent is unaffected.
CASE(fork_after) {
    void *first, *second, *freed;
    OK(cudaMalloc(&first, 7000)); // site: before_fork
    OK(cudaMalloc(&freed, 6000));
    live("before_fork", "device", number(first), 7000, 7000);
    pid_t child = fork();
    if (child == 0) {
        void *never;
        fact("child_malloc", cudaMalloc(&never, 1000));
        fact("child_free", cudaFree(first));
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) exit(95);
    fact("child_status", status);
    fact("child_pid", child);
    OK(cudaMalloc(&second, 8000)); // site: after_fork
    live("after_fork", "device", number(second), 8000, 8000);
    OK(cudaFree(freed));
}

static char **arguments;

// exec starts a new recording: the new program's leaks are separate from what the old one held.
CASE(execs) {
    void *pointer;
    OK(cudaMalloc(&pointer, 9000));
    fact("before_exec", number(pointer));
    char *const next[] = {arguments[0], (char *)"cudaMalloc", NULL};
    execv("/proc/self/exe", next);
    exit(94);
}

// ---- frees that fail ----

// A double free, and a free of the middle of a block: CUDA rejects both, and the records stay correct.
CASE(bad_frees) {
    char *kept, *freed;
    OK(cudaMalloc((void **)&kept, 10000)); // site: bad_frees
    OK(cudaMalloc((void **)&freed, 20000));
    OK(cudaFree(freed));
    fact("double_free", cudaFree(freed));
    fact("middle_free", cudaFree(kept + 256));
    live("bad_frees", "device", number(kept), 10000, 10000);
}

// Device memory given to the wrong free function stays allocated and recorded.
CASE(wrong_free) {
    void *kept;
    OK(cudaMalloc(&kept, 10000)); // site: wrong_free
    int error = cudaFreeHost(kept);
    fact("wrong_free", error);
    if (error) live("wrong_free", "device", number(kept), 10000, 10000);
}

// ---- requests that fail ----

// A request for 64 TiB fails: recorded as failed, with its size and error, never as live.
CASE(request_fails) {
    void *pointer;
    fact("plain", cudaMalloc(&pointer, 64ull << 40)); // site: request_fails
    fact("ordered", cudaMallocAsync(&pointer, 64ull << 40, 0)); // site: request_fails_async
    cudaGetLastError();
    OK(cudaMalloc(&pointer, 1000));
    OK(cudaFree(pointer));
}

// ---- device reset ----

// cudaDeviceReset frees plain, pinned and managed memory and arrays, but not pool memory.
CASE(reset) {
    void *plain, *pinned, *managed, *ordered, *after;
    cudaArray_t array;
    cudaChannelFormatDesc floats = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
    OK(cudaMalloc(&plain, 10000));
    OK(cudaMallocHost(&pinned, 20000));
    OK(cudaMallocManaged(&managed, 30000, cudaMemAttachGlobal));
    OK(cudaMallocArray(&array, &floats, 64, 64));
    OK(cudaMallocAsync(&ordered, 40000, 0)); // site: survives_reset
    OK(cudaDeviceSynchronize());
    OK(cudaDeviceReset());
    live("survives_reset", "async", number(ordered), 40000, 40000);
    OK(cudaMalloc(&after, 50000)); // site: after_reset
    live("after_reset", "device", number(after), 50000, 50000);
}

// ---- stacks ----

struct AllocatesInDestructor {
    ~AllocatesInDestructor() {
        void *pointer;
        OK(cudaMalloc(&pointer, 1100)); // site: unwinding
        live("unwinding", "device", number(pointer), 1100, 1100);
    }
};

__attribute__((noinline)) static int descend(int depth) {
    if (depth == 0) {
        AllocatesInDestructor guard;
        throw std::runtime_error("from the bottom");
    }
    try {
        return descend(depth - 1) + 1;
    } catch (const std::logic_error &) {
        return -1; // never: the exception passes through this frame
    } catch (const std::runtime_error &error) {
        if (depth % 10 != 0) throw;
        void *pointer;
        OK(cudaMalloc(&pointer, 1200)); // site: handler
        live("handler", "device", number(pointer), 1200, 1200);
        throw std::runtime_error(error.what());
    }
}

// Allocations while an exception unwinds 60 frames, and in its handlers, have their own lines.
CASE(exceptions) {
    OK(cudaFree(0));
    try {
        descend(60);
        exit(93);
    } catch (const std::runtime_error &) {
    }
}

__attribute__((noinline)) static int deep(int depth) {
    if (depth > 0) {
        int below = deep(depth - 1);
        asm volatile("" : "+r"(below)); // keeps the compiler from turning the recursion into a loop
        return below + 1;
    }
    void *pointer;
    OK(cudaMalloc(&pointer, 1300)); // site: deep
    live("deep", "device", number(pointer), 1300, 1300);
    return 0;
}

// A stack deeper than the limit is cut at its outer end, and marked as truncated.
CASE(deep_stack) {
    static volatile int depth = 300;
    if (deep(depth) != 300) exit(91);
}

template <typename T> __attribute__((noinline)) static T *buffer(size_t count) {
    T *pointer;
    OK(cudaMalloc(&pointer, count * sizeof(T))); // site: template
    return pointer;
}
static inline __attribute__((always_inline)) float *inlined_helper() {
    return buffer<float>(300); // site: inlined_caller
}

// Templates are demangled and inlined callers are named.
CASE(inlined) {
    float *pointer = inlined_helper();
    live("template", "device", number(pointer), 1200, 1200);
}

// ---- observed from outside ----

static volatile bool churning = true;

static void *churn(void *) {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    while (churning) {
        void *some[8];
        for (int i = 0; i < 8; i++) OK(i & 1 ? cudaMallocAsync(&some[i], 1024, stream) : cudaMalloc(&some[i], 1024));
        for (int i = 0; i < 8; i++) OK(i & 1 ? cudaFreeAsync(some[i], stream) : cudaFree(some[i]));
    }
    return NULL;
}

__attribute__((noinline)) static void grow_a(int count) {
    for (int i = 0; i < count; i++) {
        void *pointer;
        OK(cudaMalloc(&pointer, 4096)); // site: grow_a
        live("grow_a", "device", number(pointer), 4096, 4096);
    }
}

__attribute__((noinline)) static void grow_b(int count) {
    for (int i = 0; i < count; i++) {
        void *pointer;
        OK(cudaMalloc(&pointer, 8192)); // site: grow_b
        live("grow_b", "device", number(pointer), 8192, 8192);
    }
}

// Reads commands from stdin, so that snapshots can be taken in between: steady, grow, churn, calm, quit.
CASE(watched) {
    char word[32] = "start";
    pthread_t churners[4];
    OK(cudaFree(0));
    for (int i = 0; i < 50; i++) {
        void *pointer;
        OK(cudaMalloc(&pointer, 2048)); // site: steady
        live("steady", "device", number(pointer), 2048, 2048);
    }
    do {
        bool start = strcmp(word, "start") == 0, grow = strcmp(word, "grow") == 0;
        grow_a(start ? 1 : grow ? 10 : 0); // one stack with a block from the start, which grows
        grow_b(grow ? 5 : 0);              // and a new one
        if (strcmp(word, "churn") == 0) {
            churning = true;
            for (pthread_t &thread : churners) OK(pthread_create(&thread, NULL, churn, NULL));
        } else if (strcmp(word, "calm") == 0) {
            churning = false;
            for (pthread_t &thread : churners) OK(pthread_join(thread, NULL));
        }
        start ? say("READY %d", getpid()) : say("DONE %s", word);
    } while (scanf("%31s", word) == 1 && strcmp(word, "quit") != 0);
}

// Free device memory after the same calls, to compare runs with and without a recorder.
CASE(memory_info) {
    size_t before, after, total;
    void *pointer;
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc(&pointer, 64 << 20));
    OK(cudaMemGetInfo(&after, &total));
    fact("used_by_64_mib", before - after);
    fact("free_before", before);
    live("memory_info", "device", number(pointer), 64 << 20, 64 << 20);
}

static const Case cases[] = {
    ENTRY(cudaMalloc), ENTRY(kinds), ENTRY(clean), ENTRY(streams), ENTRY(current_pool), ENTRY(threads), ENTRY(freed_elsewhere),
    ENTRY(sigkill), ENTRY(underscore_exit), ENTRY(aborts), ENTRY(quick_exits), ENTRY(segfault), ENTRY(static_destructor),
    ENTRY(fork_before), ENTRY(fork_after), ENTRY(execs), ENTRY(bad_frees), ENTRY(wrong_free), ENTRY(request_fails), ENTRY(reset),
    ENTRY(exceptions), ENTRY(deep_stack), ENTRY(inlined), ENTRY(watched), ENTRY(memory_info), {NULL, NULL},
};

int main(int argc, char **argv) {
    arguments = argv;
    return run_case(cases, argc, argv);
}
