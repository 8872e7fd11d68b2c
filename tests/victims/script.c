/* Runs a script of operations and writes what the driver answered to each: the program of the tests in tests/model.rs.
 *
 *     script SCRIPT TRANSCRIPT [FIRST LAST]       all lines, or those of a child
 *
 * A line of the script: ID THREAD SITE VERB ARGUMENTS. An argument that names an earlier line is its ID; the value of that line is
 * the address or handle that the driver returned. A line whose value is missing (the earlier line is gone, or failed) is skipped.
 * The lines run one after another, each on its thread: 0 is the main thread. SITE selects the functions on the stack.
 *
 * A line of the transcript: PID ID RESULT VALUE DETAIL CONTEXT DEVICE THREAD, of the calling thread after the call.
 */
#include "victim.h"
#include "../../shim/include/culeak.h"
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

/* The functions of victims/cuda.h lack these. */
extern CUresult cuMemGetAddressRange_v2(CUdeviceptr *, size_t *, CUdeviceptr), cuCtxGetDevice(CUdevice *), cuMemFreeHost(void *);
extern CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *, int *);
extern CUresult cuGraphAddChildGraphNode(CUnode *, CUgraph, const CUnode *, size_t, CUgraph);

/* Verbs that allocate or create, and so have a stack: V(name, call). `a` are the arguments as numbers, `v(i)` the value of the
 * line that argument i names, `out` the result. */
#define MAKING(V) \
    V(alloc, cuMemAlloc_v2(out, a[0])) \
    V(alloc32, cuMemAlloc((unsigned *)out, a[0])) \
    V(pitch, cuMemAllocPitch_v2(out, (size_t *)&op->detail, a[0], a[1], a[2])) \
    V(managed, cuMemAllocManaged(out, a[0], 1)) \
    V(host, cuMemHostAlloc((void **)out, a[0], 0)) \
    V(hostv2, cuMemAllocHost_v2((void **)out, a[0])) \
    V(register, (*out = (uintptr_t)pages + a[0], cuMemHostRegister_v2(pages + a[0], a[1], 0))) \
    V(array, cuArrayCreate_v2((CUarray *)out, &(CUarrayDesc){a[0], a[1], CU_FORMAT_FLOAT, a[2]})) \
    V(array3d, cuArray3DCreate_v2((CUarray *)out, &(CUarray3dDesc){a[0], a[1], a[2], CU_FORMAT_U8, 1, 0})) \
    V(mipmap, cuMipmappedArrayCreate((CUmipmap *)out, &(CUarray3dDesc){a[0], a[1], 0, CU_FORMAT_FLOAT, 1, 0}, a[2])) \
    V(async, cuMemAllocAsync(out, a[0], (CUstream)v(1))) \
    V(asyncptsz, cuMemAllocAsync_ptsz(out, a[0], (CUstream)v(1))) \
    V(frompool, cuMemAllocFromPoolAsync(out, a[0], (CUpool)v(2), (CUstream)v(1))) \
    V(pool, cuMemPoolCreate((CUpool *)out, &(CUpoolProps){.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, a[0]}})) \
    V(reserve, cuMemAddressReserve(out, a[0], 0, 0, 0)) \
    V(physical, cuMemCreate(out, a[0], &(CUphysicalProps){.type = CU_TYPE_PINNED, .location = {a[1], a[2]}}, 0)) \
    V(map, (*out = v(0) + a[1], cuMemMap(*out, a[2], 0, v(3), 0))) \
    V(import, import(op, v(0))) \
    V(multicast, cuMulticastCreate(out, &(CUmulticastProps){.devices = 2, .bytes = a[0]})) \
    V(external, cuImportExternalMemory((CUexternal *)out, &(CUexternalDesc){.type = 1, .fd = dup(0), .bytes = a[0]})) \
    V(external_map, cuExternalMemoryGetMappedBuffer(out, (CUexternal)v(0), &(CUexternalBuffer){.bytes = a[1]})) \
    V(graph, cuGraphCreate((CUgraph *)out, 0)) \
    V(node, add_allocation(out, (CUgraph)v(0), a[1], a[2])) \
    V(endcapture, cuStreamEndCapture((CUstream)v(0), (CUgraph *)out)) \
    V(instantiate, cuGraphInstantiateWithFlags((CUexec *)out, (CUgraph)v(0), a[1])) \
    V(context, cuCtxCreate_v2((CUcontext *)out, 0, a[0])) \
    V(stream, cuStreamCreate((CUstream *)out, a[0])) \
    V(event, cuEventCreate((CUevent *)out, 0)) \
    V(module, cuModuleLoadData((CUmodule *)out, "image")) \
    V(library, cuLibraryLoadData((CUlibrary *)out, "image", 0, 0, 0, 0, 0, 0)) \
    V(texture, cuTexObjectCreate(out, "", "", "")) \
    V(userobject, cuUserObjectCreate((CUuserObject *)out, pages, drop, a[0], 1)) \
    V(block, (*out = v(1) + a[2], culeak_alloc(op->name, (void *)*out, a[3], NULL), 0)) \
    V(blocks, allocate_pages(out, op->name, v(1), a[2], a[3])) \
    V(deep, descend(12, a[1], out, a[0])) \
    V(churn, churn(out, op->name, a[1])) \
    V(open, open_block(op, a[0])) \
    V(pass, pass_to(a[1], out, a[0]))

/* Verbs without a stack. */
#define OTHERS(V) \
    V(free, cuMemFree_v2(v(0) + a[1])) \
    V(freehost, cuMemFreeHost((void *)v(0))) \
    V(freeasync, cuMemFreeAsync(v(0), (CUstream)v(1))) \
    V(unregister, cuMemHostUnregister((void *)v(0))) \
    V(freearray, cuArrayDestroy((CUarray)v(0))) \
    V(freemipmap, cuMipmappedArrayDestroy((CUmipmap)v(0))) \
    V(freepool, cuMemPoolDestroy((CUpool)v(0))) \
    V(trim, cuMemPoolTrimTo((CUpool)v(0), 0)) \
    V(setpool, cuDeviceSetMemPool(a[0], (CUpool)v(1))) \
    V(unreserve, cuMemAddressFree(v(0), a[1])) \
    V(release, cuMemRelease(v(0))) \
    V(retain, cuMemRetainAllocationHandle((CUhandle *)&op->value, (void *)(v(0) + a[1]))) \
    V(unmap, (op->value = v(0) + a[1], cuMemUnmap(op->value, a[2]))) \
    V(freeexternal, cuDestroyExternalMemory((CUexternal)v(0))) \
    V(freenode, add_free((CUgraph)v(0), v(1))) \
    V(child, add_child((CUgraph)v(0), (CUgraph)v(1), a[2])) \
    V(capture, cuStreamBeginCapture_v2((CUstream)v(0), a[1])) \
    V(launch, cuGraphLaunch((CUexec)v(0), (CUstream)v(1))) \
    V(freeexec, cuGraphExecDestroy((CUexec)v(0))) \
    V(freegraph, cuGraphDestroy((CUgraph)v(0))) \
    V(freecontext, cuCtxDestroy_v2((CUcontext)v(0))) \
    V(current, cuCtxSetCurrent((CUcontext)v(0))) \
    V(primary, use_primary(op, a[0])) \
    V(releaseprimary, release_primary(op, a[0])) \
    V(reset, cuDevicePrimaryCtxReset_v2(a[0])) \
    V(attach, cuCtxAttach((CUcontext *)&op->value, 0)) \
    V(detach, cuCtxDetach((CUcontext)v(0))) \
    V(freestream, cuStreamDestroy_v2((CUstream)v(0))) \
    V(freeevent, cuEventDestroy_v2((CUevent)v(0))) \
    V(unload, cuModuleUnload((CUmodule)v(0))) \
    V(unloadlibrary, cuLibraryUnload((CUlibrary)v(0))) \
    V(freetexture, cuTexObjectDestroy(v(0))) \
    V(retainobject, cuUserObjectRetain((CUuserObject)v(0), a[1])) \
    V(releaseobject, cuUserObjectRelease((CUuserObject)v(0), a[1])) \
    V(giveobject, cuGraphRetainUserObject((CUgraph)v(0), (CUuserObject)v(1), a[2], a[3])) \
    V(freeblock, (op->value = v(1) + a[2], culeak_free(op->name, (void *)op->value), 0)) \
    V(freeblocks, free_pages(op->name, v(1), a[2])) \
    V(mark, (culeak_mark(op->name), 0)) \
    V(begin, (op->value = culeak_phase_begin(op->name), 0)) \
    V(end, (culeak_phase_end(v(0)), 0)) \
    V(snapshot, (culeak_snapshot(op->name), 0)) \
    V(interval, (op->value = culeak_interval_begin(op->name, 0), 0)) \
    V(measure, measure(op, v(0), a[1])) \
    V(export, export_block(op, v(0))) \
    V(close, cuIpcCloseMemHandle(v(0))) \
    V(lookup, look_up_newer(a[0], a[1])) \
    V(pagepool, (op->value = culeak_pool_begin(op->name, a[1]), 0)) \
    V(owner, (op->value = culeak_owner_begin(v(1), op->name), 0)) \
    V(setpages, (culeak_set_pages(v(0), &(struct culeak_pages){a[1], a[2], a[3], a[4]}), 0)) \
    V(endowner, (culeak_owner_end(v(0)), 0)) \
    V(ends, 0) \
    V(quit, quit(a[0])) \
    V(fork, children(op)) \
    V(spawn, children(op)) \
    V(done, 0)

enum verb {
#define V(name, call) VERB_##name,
    MAKING(V) FIRST_OTHER,
    BEFORE_OTHERS = FIRST_OTHER - 1,
    OTHERS(V)
#undef V
        VERBS
};

static const char *const names[] = {
#define V(name, call) [VERB_##name] = #name,
    MAKING(V) OTHERS(V)
#undef V
};

enum { ARGUMENTS = 5, THREADS = 4, PAGE = 4096, STEP = 512 };

static struct op {
    long id, thread, site;
    enum verb verb;
    long long a[ARGUMENTS];
    char name[40];
    int is_known, result;
    unsigned long long value, detail;
} *ops;
static long count;
static int transcript, handles, in_child;
static const char *script_path, *transcript_path;
static char pages[64 * PAGE] __attribute__((aligned(PAGE)));
static _Thread_local int is_missing;

/* The value of the line with this ID; 0 for the ID 0, which stands for a null argument. */
static unsigned long long value_of(long long id) {
    if (!id) return 0;
    for (long i = 0; i < count; i++)
        if (ops[i].id == id) {
            if (!ops[i].is_known || ops[i].result) is_missing = 1;
            return ops[i].value;
        }
    is_missing = 1;
    return 0;
}
#define v(i) value_of(op->a[i])

/* The value: bytes left; the detail: their peak. The result is 1 if there is no answer. */
static CUresult measure(struct op *op, unsigned number, int device) {
    struct culeak_interval of = {0};
    int is_known = culeak_interval_read(number, device, &of);
    op->value = of.left_bytes, op->detail = of.peak_bytes;
    return !is_known;
}

static void drop(void *nothing) { (void)nothing; }

static CUresult quit(int how) {
    if (how == 0) exit(0);
    if (how == 1) _exit(0);
    if (how == 3) return raise(SIGSTOP);
    kill(getpid(), SIGKILL);
    return 0;
}

/* The detail: whether the export failed. */
static CUresult import(struct op *op, CUhandle handle) {
    int file = -1;
    CUresult result = cuMemExportToShareableHandle(&file, handle, CU_HANDLE_FD, 0);
    op->detail = result;
    if (!result) result = cuMemImportFromShareableHandle(&op->value, (void *)(uintptr_t)file, CU_HANDLE_FD);
    STAY();
    close(file);
    return result;
}

/* A handle that a child may open: it finds it by the ID of this line. */
static CUresult export_block(struct op *op, CUdeviceptr address) {
    CUipcHandle handle;
    CUresult result = cuIpcGetMemHandle(&handle, address);
    if (!result) REQUIRE(pwrite(handles, &handle, sizeof handle, op->id * sizeof handle) == sizeof handle);
    op->value = op->id;
    return result;
}

/* The detail: the size of the block. */
static CUresult open_block(struct op *op, long id) {
    CUipcHandle handle = {{0}};
    CUdeviceptr start;
    REQUIRE(pread(handles, &handle, sizeof handle, id * sizeof handle) >= 0);
    CUresult result = cuIpcOpenMemHandle_v2(&op->value, handle, 1);
    STAY();
    if (!result) REQUIRE(!cuMemGetAddressRange_v2(&start, (size_t *)&op->detail, op->value));
    return result;
}

/* Through the library with this number, of which the test has made a folder of copies. */
static CUresult pass_to(long number, CUdeviceptr *out, size_t bytes) {
    char path[400];
    snprintf(path, sizeof path, "%s/%ld.so", getenv("CULEAK_TEST_COPIES"), number);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library);
    CUresult (*pass)(CUdeviceptr *, size_t) = dlsym(library, "pass");
    CUresult result = pass(out, bytes);
    STAY();
    return result;
}

/* Functions that the driver has and culeak does not know. */
static CUresult look_up_newer(long first, long n) {
    CUresult (*look_up)(const char *, void **, int, uint64_t, int *) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    REQUIRE(look_up);
    for (long i = first; i < first + n; i++) {
        char name[40];
        void *found = NULL;
        snprintf(name, sizeof name, "cuNewerAlloc%ld", i);
        REQUIRE(!look_up(name, &found, 12000, 0, NULL) && found);
    }
    return 0;
}

static CUresult add_allocation(unsigned long long *out, CUgraph graph, size_t bytes, int device) {
    CUnode node;
    CUallocNode params = {.pool = {.type = CU_TYPE_PINNED, .location = {CU_LOCATION_DEVICE, device}}, .bytes = bytes};
    CUresult result = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
    STAY();
    *out = params.address;
    return result;
}

static CUresult add_free(CUgraph graph, CUdeviceptr address) {
    CUnode node;
    return cuGraphAddMemFreeNode(&node, graph, NULL, 0, address);
}

static CUresult add_child(CUgraph graph, CUgraph child, int moved) {
    CUnode node;
    if (!moved) return cuGraphAddChildGraphNode(&node, graph, NULL, 0, child);
    CUnodeParams params = {.type = CU_NODE_CHILD, .child = {child, CU_CHILD_MOVED}};
    return cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params);
}

static CUresult use_primary(struct op *op, int device) {
    CUresult result = cuDevicePrimaryCtxRetain((CUcontext *)&op->value, device);
    return result ? result : cuCtxSetCurrent((CUcontext)op->value);
}

/* The detail: whether the context still exists. */
static CUresult release_primary(struct op *op, int device) {
    unsigned flags;
    int active = 1;
    CUresult result = cuDevicePrimaryCtxRelease_v2(device);
    cuDevicePrimaryCtxGetState(device, &flags, &active);
    op->detail = active;
    return result;
}

static CUresult allocate_pages(unsigned long long *out, const char *domain, unsigned long long base, long n, size_t bytes) {
    unsigned long long all[64];
    for (long i = 0; i < n; i++) all[i] = base + i * STEP;
    culeak_alloc_pages(domain, all, n, bytes, NULL);
    STAY();
    *out = base;
    return 0;
}

static CUresult free_pages(const char *domain, unsigned long long base, long n) {
    unsigned long long all[64];
    for (long i = 0; i < n; i++) all[i] = base + i * STEP;
    culeak_free_pages(domain, all, n);
    return 0;
}

/* A stack for each number of `path`, whose bits are the ways from the outermost function inwards. */
static NOINLINE CUresult left(int depth, long path, CUdeviceptr *out, size_t bytes);
static NOINLINE CUresult descend(int depth, long path, CUdeviceptr *out, size_t bytes) {
    CUresult result;
    if (!depth) result = cuMemAlloc_v2(out, bytes);
    else result = path & 1 ? left(depth - 1, path >> 1, out, bytes) : descend(depth - 1, path >> 1, out, bytes);
    STAY();
    return result;
}
static NOINLINE CUresult left(int depth, long path, CUdeviceptr *out, size_t bytes) {
    CUresult result = descend(depth, path, out, bytes);
    STAY();
    return result;
}

/* A block that is allocated and freed `n` times. */
static CUresult churn(unsigned long long *out, const char *domain, long n) {
    *out = (uintptr_t)pages;
    for (long i = 0; i < n; i++) {
        culeak_alloc(domain, pages, STEP, NULL);
        culeak_free(domain, pages);
    }
    STAY();
    return 0;
}

static CUresult children(struct op *op);

/* Whether every line that the arguments name has a value: evaluated like the call, without calling. */
static int values_are_known(struct op *op);

#define SITE site_0
#include "script_site.h"
#define SITE site_1
#include "script_site.h"
#define SITE site_2
#include "script_site.h"
#define SITE site_3
#include "script_site.h"

static NOINLINE void leaf(struct op *op) {
    switch (op->site % 4) {
    case 0: site_0(op); break;
    case 1: site_1(op); break;
    case 2: site_2(op); break;
    default: site_3(op); break;
    }
    STAY();
}

static NOINLINE void through_0(struct op *op) { leaf(op); STAY(); }
static NOINLINE void through_1(struct op *op) { leaf(op); STAY(); }
static NOINLINE void through_2(struct op *op) { through_1(op); STAY(); }

static NOINLINE void other(struct op *op) {
    long long *a = op->a;
    (void)a;
    switch (op->verb) {
#define V(name, call) \
    case VERB_##name: op->result = (call); break;
        OTHERS(V)
#undef V
    default: break;
    }
}

/* Which arguments name lines, as bits; see the calls. */
static const unsigned char named[VERBS] = {
    [VERB_async] = 2, [VERB_asyncptsz] = 2, [VERB_frompool] = 6, [VERB_map] = 9, [VERB_import] = 1, [VERB_external_map] = 1,
    [VERB_node] = 1, [VERB_endcapture] = 1, [VERB_instantiate] = 1, [VERB_block] = 2, [VERB_blocks] = 2, [VERB_free] = 1,
    [VERB_freehost] = 1, [VERB_freeasync] = 3, [VERB_unregister] = 1, [VERB_freearray] = 1, [VERB_freemipmap] = 1,
    [VERB_freepool] = 1, [VERB_trim] = 1, [VERB_setpool] = 2, [VERB_unreserve] = 1, [VERB_release] = 1, [VERB_retain] = 1,
    [VERB_unmap] = 1, [VERB_freeexternal] = 1, [VERB_freenode] = 3, [VERB_child] = 3, [VERB_capture] = 1, [VERB_launch] = 3,
    [VERB_freeexec] = 1, [VERB_freegraph] = 1, [VERB_freecontext] = 1, [VERB_current] = 1, [VERB_detach] = 1,
    [VERB_freestream] = 1, [VERB_freeevent] = 1, [VERB_unload] = 1, [VERB_unloadlibrary] = 1, [VERB_freetexture] = 1, [VERB_retainobject] = 1,
    [VERB_releaseobject] = 1, [VERB_giveobject] = 3,
    [VERB_freeblock] = 2, [VERB_freeblocks] = 2, [VERB_end] = 1, [VERB_measure] = 1,
    [VERB_export] = 1, [VERB_close] = 1, [VERB_owner] = 2, [VERB_setpages] = 1, [VERB_endowner] = 1,
};

static int values_are_known(struct op *op) {
    is_missing = 0;
    for (int i = 0; i < ARGUMENTS; i++)
        if (named[op->verb] >> i & 1) value_of(op->a[i]);
    return !is_missing;
}

static void perform(struct op *op) {
    if (!values_are_known(op)) return;
    op->is_known = 1;
    if (op->verb >= FIRST_OTHER) other(op);
    else
        switch (op->site / 4 % 3) {
        case 0: through_0(op); break;
        case 1: through_1(op); break;
        default: through_2(op); break;
        }
    CUcontext context = NULL;
    CUdevice device = -1;
    if (cuCtxGetCurrent(&context)) context = NULL;
    if (cuCtxGetDevice(&device)) device = -1;
    char line[200];
    int length = snprintf(line, sizeof line, "%d %ld %d %llu %llu %llu %d %ld\n", getpid(), op->id, op->result, op->value, op->detail,
                          (unsigned long long)(uintptr_t)context, device, syscall(SYS_gettid));
    REQUIRE(write(transcript, line, length) == length);
}

/* Threads, which wait for their lines. */
static struct worker { pthread_t thread; int is_running; sem_t wanted; struct op *op; } workers[THREADS];
static sem_t finished;

static void *work(void *argument) {
    struct worker *self = argument;
    for (;;) {
        while (sem_wait(&self->wanted)) {}
        struct op *op = self->op;
        if (op->verb == VERB_ends) self->is_running = 0;
        else perform(op);
        int is_over = op->verb == VERB_ends;
        sem_post(&finished);
        if (is_over) return NULL;
    }
}

static void run(struct op *op) {
    struct worker *on = &workers[op->thread % THREADS];
    if (on == workers || in_child) {
        if (op->verb != VERB_ends) perform(op);
        return;
    }
    if (op->verb == VERB_ends && !on->is_running) return;
    if (!on->is_running) {
        REQUIRE(!pthread_create(&on->thread, NULL, work, on));
        on->is_running = 1;
    }
    on->op = op;
    sem_post(&on->wanted);
    while (sem_wait(&finished)) {}
    if (op->verb == VERB_ends) REQUIRE(!pthread_join(on->thread, NULL));
}

static long end_of_child(long i) {
    while (i < count && ops[i].verb != VERB_done) i++;
    return i;
}

static void run_all(long first, long last) {
    for (long i = first; i < last; i++) {
        run(&ops[i]);
        if (ops[i].verb == VERB_fork || ops[i].verb == VERB_spawn) i = end_of_child(i);
    }
}

/* The lines up to `done` run in a child: forked, or a new program. */
static CUresult children(struct op *op) {
    long first = op - ops + 1, last = end_of_child(first);
    int status = 0;
    pid_t child;
    if (op->verb == VERB_fork) {
        child = fork();
        if (!child) {
            in_child = 1;
            run_all(first, last);
            exit(0);
        }
    } else {
        char from[20], to[20];
        snprintf(from, sizeof from, "%ld", first);
        snprintf(to, sizeof to, "%ld", last);
        char *command[] = {"script", (char *)script_path, (char *)transcript_path, from, to, NULL};
        REQUIRE(!posix_spawn(&child, "/proc/self/exe", NULL, NULL, command, environ));
    }
    op->value = child;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    /* It may have ended itself; the detail says how. */
    op->detail = status;
    REQUIRE(status == 0 || status == SIGKILL);
    return 0;
}

static void read_script(void) {
    FILE *file = fopen(script_path, "r");
    char line[300], verb[40];
    REQUIRE(file);
    while (fgets(line, sizeof line, file)) {
        int used = 0;
        struct op op = {0};
        if (sscanf(line, "%ld %ld %ld %39s %n", &op.id, &op.thread, &op.site, verb, &used) < 4) continue;
        for (op.verb = 0; op.verb < VERBS && (!names[op.verb] || strcmp(names[op.verb], verb)); op.verb++) {}
        REQUIRE(op.verb < VERBS);
        char *at = line + used;
        for (int i = 0; i < ARGUMENTS; i++) {
            char *end;
            op.a[i] = strtoll(at, &end, 10);
            if (end == at) {
                if (sscanf(at, "%39s%n", op.name, &used) < 1) break;
                end = at + used;
            }
            at = end;
        }
        ops = realloc(ops, (count + 1) * sizeof *ops);
        ops[count++] = op;
    }
    fclose(file);
}

int main(int argc, char **argv) {
    REQUIRE(argc >= 3);
    script_path = argv[1], transcript_path = argv[2];
    transcript = open(transcript_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    char path[4096];
    snprintf(path, sizeof path, "%s.handles", transcript_path);
    handles = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(transcript >= 0 && handles >= 0);
    read_script();
    sem_init(&finished, 0, 0);
    for (int i = 0; i < THREADS; i++) sem_init(&workers[i].wanted, 0, 0);
    REQUIRE(open_driver());
    OK(cuInit(0));
    run_all(argc > 3 ? atol(argv[3]) : 0, argc > 4 ? atol(argv[4]) : count);
    return 0;
}
