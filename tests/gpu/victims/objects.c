// Objects without an address, on the driver API: counts by line, what a context's end destroys, and a graph for each request.
//
// `MADE pid label kind count` lines say how many objects of a source line are left. `after SCENARIO KIND` uses a handle after what
// may have destroyed it, so it may crash; it prints `AFTER pid scenario kind error` if it does not.
#include "victim.h"

#include <cuda.h>

static CUdevice device;
static CUcontext primary;

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static void made(const char *label, const char *kind, int count) { say("MADE %d %s %s %d", getpid(), label, kind, count); }

static CUcontext create_context(void) {
    CUcontext context;
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&context, NULL, 0, device)); // site: obj_context
#else
    OK(cuCtxCreate(&context, 0, device)); // site: obj_context_older
#endif
    return context;
}

static CUgraph new_graph(int nodes) {
    CUgraph graph;
    OK(cuGraphCreate(&graph, 0)); // site: obj_graph
    CUgraphNode last;
    for (int node = 0; node < nodes; node++) OK(cuGraphAddEmptyNode(&last, graph, NULL, 0));
    return graph;
}

static CUarray new_array(void) {
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR shape = {64, 32, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST};
    OK(cuArray3DCreate(&array, &shape));
    return array;
}

static CUDA_RESOURCE_DESC resource_of(CUarray array) {
    CUDA_RESOURCE_DESC resource;
    memset(&resource, 0, sizeof resource);
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    return resource;
}

static void nothing(void *pointer) { (void)pointer; }

// ---- making one of each kind, each on one line ----

static CUstream make_stream(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); // site: obj_stream
    return stream;
}

static CUevent make_event(void) {
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)); // site: obj_event
    return event;
}

static CUmodule make_module(void) {
    CUmodule module;
    OK(cuModuleLoadData(&module, image)); // site: obj_module
    return module;
}

static CUlibrary make_library(void) {
    CUlibrary library;
    OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0)); // site: obj_library
    return library;
}

static CUlinkState make_linker(void) {
    CUlinkState linker;
    OK(cuLinkCreate(0, NULL, NULL, &linker)); // site: obj_linker
    return linker;
}

static CUgraphExec make_exec(CUgraph graph) {
    CUgraphExec exec;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0)); // site: obj_exec
    return exec;
}

static CUtexObject make_texture(CUarray array) {
    CUtexObject texture;
    CUDA_RESOURCE_DESC resource = resource_of(array);
    CUDA_TEXTURE_DESC how;
    memset(&how, 0, sizeof how);
    OK(cuTexObjectCreate(&texture, &resource, &how, NULL)); // site: obj_texture
    return texture;
}

static CUsurfObject make_surface(CUarray array) {
    CUsurfObject surface;
    CUDA_RESOURCE_DESC resource = resource_of(array);
    OK(cuSurfObjectCreate(&surface, &resource)); // site: obj_surface
    return surface;
}

static CUmemoryPool make_pool(void) {
    CUmemoryPool pool;
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    OK(cuMemPoolCreate(&pool, &properties)); // site: obj_pool
    return pool;
}

static CUuserObject make_user_object(void) {
    CUuserObject object;
    OK(cuUserObjectCreate(&object, &device, nothing, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)); // site: obj_user
    return object;
}

#if CUDA_VERSION >= 12040
static CUgreenCtx make_green_context(void) {
    CUdevResource resource;
    CUdevResourceDesc description;
    CUgreenCtx green;
    OK(cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevResourceGenerateDesc(&description, &resource, 1));
    OK(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM)); // site: obj_green
    return green;
}
#endif

// ---- counts by line: each line makes several and some of them are destroyed ----

CASE(counts) {
    for (int n = 0; n < 8; n++) {
        CUstream stream = make_stream();
        if (n % 2) OK(cuStreamDestroy(stream));
    }
    made("obj_stream", "stream", 4);
    for (int n = 0; n < 9; n++) {
        CUevent event = make_event();
        if (n % 3 == 0) OK(cuEventDestroy(event));
    }
    made("obj_event", "event", 6);
    for (int n = 0; n < 4; n++) {
        CUmodule module = make_module();
        if (n == 0) OK(cuModuleUnload(module));
    }
    made("obj_module", "module", 3);
    for (int n = 0; n < 4; n++) {
        CUlibrary library = make_library();
        if (n < 2) OK(cuLibraryUnload(library));
    }
    made("obj_library", "library", 2);
    for (int n = 0; n < 3; n++) {
        CUlinkState linker = make_linker();
        if (n == 0) OK(cuLinkDestroy(linker));
    }
    made("obj_linker", "linker", 2);
    for (int n = 0; n < 6; n++) {
        CUgraph graph = new_graph(n % 2 ? 5 : 3);
        CUgraphExec exec = make_exec(graph);
        if (n < 2) OK(cuGraphExecDestroy(exec));
        if (n < 5) OK(cuGraphDestroy(graph));
    }
    made("obj_exec", "graph-exec", 4);
    made("obj_graph", "graph-object", 1);
    fact("least_nodes", 3);
    fact("most_nodes", 5);
    CUarray array = new_array();
    for (int n = 0; n < 3; n++) {
        CUtexObject texture = make_texture(array);
        CUsurfObject surface = make_surface(array);
        if (n == 0) OK(cuTexObjectDestroy(texture));
        if (n < 2) OK(cuSurfObjectDestroy(surface));
    }
    made("obj_texture", "texture", 2);
    made("obj_surface", "surface", 1);
    for (int n = 0; n < 3; n++) {
        CUmemoryPool pool = make_pool();
        if (n == 0) OK(cuMemPoolDestroy(pool));
    }
    made("obj_pool", "pool", 2);
    for (int n = 0; n < 3; n++) {
        CUuserObject object = make_user_object();
        OK(cuUserObjectRetain(object, 1));
        if (n == 0) OK(cuUserObjectRelease(object, 3));
    }
    made("obj_user", "user-object", 2);
}

CASE(green) {
#if CUDA_VERSION >= 12040
    CUstream stream;
    for (int n = 0; n < 3; n++) {
        CUgreenCtx green = make_green_context();
#if CUDA_VERSION >= 12050
        OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0)); // site: obj_green_stream
        if (n == 0) OK(cuStreamDestroy(stream));
#endif
        if (n < 2) OK(cuGreenCtxDestroy(green));
    }
    made("obj_green", "green-context", 1);
#if CUDA_VERSION >= 12050
    made("obj_green_stream", "stream", 2);
#endif
#else
    unsupported("green contexts (CUDA 12.4)");
#endif
}

CASE(contexts) {
    for (int n = 0; n < 3; n++) {
        CUcontext context = create_context();
        if (n == 0) OK(cuCtxDestroy(context));
    }
#if CUDA_VERSION >= 13000
    made("obj_context", "context", 2);
#else
    made("obj_context_older", "context", 2);
#endif
}

// ---- a graph for each request: captured, instantiated, launched, forgotten ----

static void request(CUstream stream, CUdeviceptr memory) {
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int node = 0; node < 10; node++) OK(cuMemsetD8Async(memory, (unsigned char)node, 4096, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0)); // site: obj_request
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphDestroy(graph));
}

CASE(requests) {
    CUdeviceptr memory;
    CUstream stream = make_stream();
    OK(cuMemAlloc(&memory, 4096));
    for (int n = 0; n < 40; n++) request(stream, memory);
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(memory));
    made("obj_request", "graph-exec", 40);
}

// A graph is instantiated while another stream is being captured: each mode, with the results of every call.
CASE(instantiates_in_captures) {
    static const CUstreamCaptureMode modes[] = {
        CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED};
    for (int mode = 0; mode < 3; mode++) {
        CUstream stream = make_stream();
        CUgraph other = new_graph(4), graph = NULL;
        CUgraphExec exec = NULL;
        CUevent event = NULL;
        CUstream second = NULL;
        OK(cuStreamBeginCapture(stream, modes[mode]));
        int instantiated = cuGraphInstantiateWithFlags(&exec, other, 0);
        int created = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        int streamed = cuStreamCreate(&second, CU_STREAM_NON_BLOCKING);
        int ended = cuStreamEndCapture(stream, &graph);
        say("RESULT mode %d: instantiate %d, event %d, stream %d, end of capture %d", mode, instantiated, created, streamed, ended);
    }
}

// ---- what else destroys objects ----

typedef struct {
    CUstream stream;
    CUevent event;
    CUmodule module;
    CUlibrary library;
    CUkernel kernel;
    CUgraph graph;
    CUgraphExec exec;
    CUtexObject texture;
    CUsurfObject surface;
    CUlinkState linker;
    CUmemoryPool pool;
#if CUDA_VERSION >= 12040
    CUgreenCtx green;
#endif
} Handles;

static Handles all(const char *kind) {
    Handles of;
    memset(&of, 0, sizeof of);
    if (!strcmp(kind, "stream")) of.stream = make_stream();
    if (!strcmp(kind, "event")) of.event = make_event();
    if (!strcmp(kind, "module")) of.module = make_module();
    if (!strcmp(kind, "library") || !strcmp(kind, "kernel")) {
        of.library = make_library();
        OK(cuLibraryGetKernel(&of.kernel, of.library, "nothing"));
    }
    if (!strcmp(kind, "graph-object")) of.graph = new_graph(2);
    if (!strcmp(kind, "graph-exec")) of.exec = make_exec(new_graph(2));
    if (!strcmp(kind, "texture")) of.texture = make_texture(new_array());
    if (!strcmp(kind, "surface")) of.surface = make_surface(new_array());
    if (!strcmp(kind, "linker")) of.linker = make_linker();
    if (!strcmp(kind, "pool")) of.pool = make_pool();
#if CUDA_VERSION >= 12040
    if (!strcmp(kind, "green-context")) of.green = make_green_context();
    if (!strcmp(kind, "green-stream")) {
        of.green = make_green_context();
#if CUDA_VERSION >= 12050
        OK(cuGreenCtxStreamCreate(&of.stream, of.green, CU_STREAM_NON_BLOCKING, 0));
#endif
    }
#endif
    return of;
}

// What the driver says of a handle: 0 if the object still exists.
static int ask(const Handles *of, const char *kind) {
    CUDA_RESOURCE_DESC resource;
    size_t nodes = 0;
    cuuint64_t flags = 0;
    CUfunction function;
    unsigned count = 0;
    if (!strcmp(kind, "stream") || !strcmp(kind, "green-stream")) return cuStreamQuery(of->stream);
    if (!strcmp(kind, "event")) return cuEventQuery(of->event);
    if (!strcmp(kind, "module")) return cuModuleGetFunction(&function, of->module, "nothing");
    if (!strcmp(kind, "library")) {
        CUkernel kernel;
        return cuLibraryGetKernel(&kernel, of->library, "nothing");
    }
    if (!strcmp(kind, "kernel")) return cuKernelGetFunction(&function, of->kernel);
    if (!strcmp(kind, "graph-object")) return cuGraphGetNodes(of->graph, NULL, &nodes);
    if (!strcmp(kind, "graph-exec")) return cuGraphExecGetFlags(of->exec, &flags);
    if (!strcmp(kind, "texture")) return cuTexObjectGetResourceDesc(&resource, of->texture);
    if (!strcmp(kind, "surface")) return cuSurfObjectGetResourceDesc(&resource, of->surface);
    if (!strcmp(kind, "linker")) return cuLinkAddData(of->linker, CU_JIT_INPUT_PTX, (void *)image, sizeof image, "again", 0, NULL, NULL);
    if (!strcmp(kind, "pool")) {
        cuuint64_t used;
        return cuMemPoolGetAttribute(of->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    }
#if CUDA_VERSION >= 12040
    if (!strcmp(kind, "green-context")) {
        CUdevResource found;
        return cuGreenCtxGetDevResource(of->green, &found, CU_DEV_RESOURCE_TYPE_SM);
    }
#endif
    (void)count;
    fprintf(stderr, "no question for %s\n", kind);
    exit(96);
}

static int after(const char *scenario, const char *kind) {
    Handles of;
    if (!strcmp(scenario, "context_destroyed")) {
        CUcontext context = create_context();
        of = all(kind);
        OK(cuCtxDestroy(context));
    } else if (!strcmp(scenario, "primary_reset")) {
        of = all(kind);
        OK(cuDevicePrimaryCtxReset(device));
    } else if (!strcmp(scenario, "primary_released")) {
        of = all(kind);
        OK(cuDevicePrimaryCtxRelease(device));
#if CUDA_VERSION >= 12040
    } else if (!strcmp(scenario, "green_destroyed")) {
        of = all(kind);
        OK(cuGreenCtxDestroy(of.green));
#endif
    } else if (!strcmp(scenario, "library_unloaded")) {
        of = all(kind);
        OK(cuLibraryUnload(of.library));
    } else {
        return 96;
    }
    // Another context is current, so that an error is about the handle.
    if (strcmp(scenario, "green_destroyed") && strcmp(scenario, "library_unloaded")) {
        CUcontext again;
        OK(cuDevicePrimaryCtxRetain(&again, device));
        OK(cuCtxSetCurrent(again));
    }
    say("ASKS %d %s %s", getpid(), scenario, kind);
    say("AFTER %d %s %s %d", getpid(), scenario, kind, ask(&of, kind));
    _exit(0);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        ENTRY(counts), ENTRY(green), ENTRY(contexts), ENTRY(requests), ENTRY(instantiates_in_captures), {NULL, NULL}};
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&primary, device));
    OK(cuCtxSetCurrent(primary));
    if (argc == 4 && !strcmp(argv[1], "after")) return after(argv[2], argv[3]);
    return run_case(cases, argc, argv);
}
