/* Objects without an address: one of each kind, destroyed if the last argument is "free". */
#include "victim.h"
#include <pthread.h>
#include <stdatomic.h>

static int give_back(void) { return arguments[0] && !strcmp(arguments[0], "free"); }

static const char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n";
static char descriptor[512];
static CUdeviceptr memory;

#define OBJECT(name, type, create, destroy) \
    static NOINLINE void name(void) { \
        start_cuda(); \
        type object = 0; \
        OK(create); \
        REQUIRE(object); \
        if (give_back()) OK(destroy); \
        STAY(); \
    }

OBJECT(stream, CUstream, cuStreamCreate(&object, 1), cuStreamDestroy_v2(object))
OBJECT(stream_with_priority, CUstream, cuStreamCreateWithPriority(&object, 1, -1), cuStreamDestroy_v2(object))
OBJECT(event, CUevent, cuEventCreate(&object, 2), cuEventDestroy_v2(object))
OBJECT(module, CUmodule, cuModuleLoadData(&object, image), cuModuleUnload(object))
OBJECT(library, CUlibrary, cuLibraryLoadData(&object, image, 0, 0, 0, 0, 0, 0), cuLibraryUnload(object))
OBJECT(linker, CUlinker, cuLinkCreate_v2(0, 0, 0, &object), cuLinkDestroy(object))
OBJECT(graph, CUgraph, cuGraphCreate(&object, 0), cuGraphDestroy(object))
OBJECT(green_context, CUgreen, cuGreenCtxCreate(&object, descriptor, 0, 1), cuGreenCtxDestroy(object))
OBJECT(texture, CUtexture, cuTexObjectCreate(&object, descriptor, descriptor, 0), cuTexObjectDestroy(object))
OBJECT(surface, CUsurface, cuSurfObjectCreate(&object, descriptor), cuSurfObjectDestroy(object))
OBJECT(semaphore, CUsemaphore, cuImportExternalSemaphore(&object, descriptor), cuDestroyExternalSemaphore(object))
OBJECT(user_object, CUuserObject, cuUserObjectCreate(&object, descriptor, free, 2, 1), cuUserObjectRelease(object, 2))

OBJECT(gl_buffer, CUgraphics, cuGraphicsGLRegisterBuffer(&object, 1, 0), cuGraphicsUnregisterResource(object))
OBJECT(gl_image, CUgraphics, cuGraphicsGLRegisterImage(&object, 1, 0x0de1, 0), cuGraphicsUnregisterResource(object))
OBJECT(egl_image, CUgraphics, cuGraphicsEGLRegisterImage(&object, descriptor, 0), cuGraphicsUnregisterResource(object))
OBJECT(vdpau_video, CUgraphics, cuGraphicsVDPAURegisterVideoSurface(&object, 1, 0), cuGraphicsUnregisterResource(object))
OBJECT(vdpau_output, CUgraphics, cuGraphicsVDPAURegisterOutputSurface(&object, 1, 0), cuGraphicsUnregisterResource(object))

OBJECT(context, CUcontext, cuCtxCreate_v2(&object, 0, 0), cuCtxDestroy_v2(object))

static NOINLINE void exec(void) {
    start_cuda();
    CUgraph graph, clone;
    CUexec exec;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphInstantiateWithFlags(&exec, clone, 0));
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(graph));
    if (give_back()) OK(cuGraphExecDestroy(exec));
}

static NOINLINE void captured(void) {
    start_cuda();
    CUstream stream;
    CUgraph graph;
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamDestroy_v2(stream));
    if (give_back()) OK(cuGraphDestroy(graph));
}

/* The graph takes over one reference, and the program gives the other one up. */
static void given_user_object(void) {
    start_cuda();
    CUgraph graph;
    CUuserObject object;
    OK(cuGraphCreate(&graph, 0));
    OK(cuUserObjectCreate(&object, descriptor, free, 1, 1));
    OK(cuUserObjectRetain(object, 1));
    OK(cuGraphRetainUserObject(graph, object, 1, 1));
    OK(cuUserObjectRelease(object, 1));
    OK(cuGraphDestroy(graph));
}

/* A context takes its objects along. */
static void in_context(void) {
    start_cuda();
    CUcontext context;
    CUstream stream;
    CUevent event;
    CUmodule module;
    CUlibrary library;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuStreamCreate(&stream, 1));
    OK(cuEventCreate(&event, 2));
    OK(cuModuleLoadData(&module, image));
    OK(cuLibraryLoadData(&library, image, 0, 0, 0, 0, 0, 0));
    OK(cuCtxDestroy_v2(context));
}

/* A stream for each of several requests, from one line. */
static NOINLINE CUstream per_request(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    STAY();
    return stream;
}

/* A stream that an exit handler destroys, and one that is left. */
static CUstream until_exit;
static void destroys_at_exit(void) { cuStreamDestroy_v2(until_exit); }

static void destroyed_at_exit(void) {
    /* Before the recorder watches the exit, so that this handler runs after the recorder's. */
    REQUIRE(!atexit(destroys_at_exit));
    start_cuda();
    OK(cuStreamCreate(&until_exit, 1));
    until_exit = per_request();
}

/* The second stream exists when the event is created, and is destroyed later. */
static void over_time(void) {
    start_cuda();
    CUstream first, second;
    CUevent event;
    OK(cuStreamCreate(&first, 1));
    OK(cuStreamCreate(&second, 1));
    OK(cuEventCreate(&event, 2));
    usleep(1000);
    OK(cuStreamDestroy_v2(second));
}

/* Captured, instantiated, launched, forgotten. */
static NOINLINE void decode(CUstream stream) {
    CUgraph graph;
    CUexec exec;
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    OK(cuMemsetD8Async(memory, 1, 64, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphDestroy(graph));
    STAY();
}

static void decodes(void) {
    start_cuda();
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAlloc_v2(&memory, 64));
    for (int request = 0; request < 40; request++) decode(stream);
    OK(cuMemFree_v2(memory));
    OK(cuStreamDestroy_v2(stream));
}

/* An executable that is made while a stream is being captured. */
static void exec_in_capture(void) {
    start_cuda();
    CUstream stream;
    CUgraph graph, captured;
    CUexec exec;
    OK(cuGraphCreate(&graph, 0));
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuStreamEndCapture(stream, &captured));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
}

static void decodes_and_waits(void) {
    decodes();
    REQUIRE(write(1, "ready\n", 6) == 6);
    for (;;) pause();
}

/* The program gives up more references than it has, which the driver refuses; then those that it has. */
static void over_released(void) {
    start_cuda();
    CUuserObject object;
    OK(cuUserObjectCreate(&object, descriptor, free, 2, 1));
    REQUIRE(cuUserObjectRelease(object, 5) == 1);
    OK(cuUserObjectRelease(object, 2));
}

/* A stream that the recorder has not seen being created, and a handle that is none. */
extern int unseen_stream(CUstream *) __attribute__((weak));

static void unseen(void) {
    start_cuda();
    CUstream stream;
    REQUIRE(unseen_stream);
    OK(unseen_stream(&stream));
    OK(cuStreamDestroy_v2(stream));
    REQUIRE(cuStreamDestroy_v2(stream));
    /* The same handle. */
    CUstream again;
    OK(cuStreamCreate(&again, 1));
    REQUIRE(again == stream);
}

/* Events that another thread destroys before the function that creates them has returned. */
extern void events_meet(void (*)(void *)) __attribute__((weak));

static void *destroys_event(void *event) {
    OK(cuEventDestroy_v2(event));
    return 0;
}

static void in_another_thread(void *event) {
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, 0, destroys_event, event) && !pthread_join(thread, 0));
}

static void destroyed_early(void) {
    start_cuda();
    CUevent event;
    REQUIRE(events_meet);
    events_meet(in_another_thread);
    for (int turn = 0; turn < 100; turn++) OK(cuEventCreate(&event, 2));
}

/* Objects that other threads destroy, and handles that are used again at once. */
enum { THREADS = 8, TURNS = 1500, SLOTS = 4 };
static void *_Atomic streams[SLOTS], *_Atomic events[SLOTS], *_Atomic graphs[SLOTS], *_Atomic execs[SLOTS];
static CUgraph original;

static void *exchanges(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(0));
    start_cuda();
    for (int turn = 0; turn < TURNS; turn++) {
        CUstream stream;
        CUevent event;
        CUgraph graph;
        CUexec exec;
        OK(cuStreamCreate(&stream, 1));
        if ((stream = atomic_exchange(&streams[turn % SLOTS], stream))) OK(cuStreamDestroy_v2(stream));
        OK(cuEventCreate(&event, 2));
        if ((event = atomic_exchange(&events[turn % SLOTS], event))) OK(cuEventDestroy_v2(event));
        OK(cuGraphCreate(&graph, 0));
        if ((graph = atomic_exchange(&graphs[turn % SLOTS], graph))) OK(cuGraphDestroy(graph));
        OK(cuGraphInstantiateWithFlags(&exec, original, 0));
        if ((exec = atomic_exchange(&execs[turn % SLOTS], exec))) OK(cuGraphExecDestroy(exec));
    }
    return 0;
}

static void exchanged(void) {
    start_cuda();
    OK(cuGraphCreate(&original, 0));
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++) REQUIRE(!pthread_create(&all[i], 0, exchanges, 0));
    for (int i = 0; i < THREADS; i++) REQUIRE(!pthread_join(all[i], 0));
    OK(cuGraphDestroy(original));
}

/* Many, one after the other. */
static void churn(void) {
    start_cuda();
    for (int turn = 0; turn < atoi(arguments[0]); turn++) {
        CUstream stream;
        CUevent event;
        OK(cuStreamCreate(&stream, 1));
        OK(cuEventCreate(&event, 2));
        OK(cuEventDestroy_v2(event));
        OK(cuStreamDestroy_v2(stream));
    }
}

static void requests(void) {
    start_cuda();
    for (int request = 0; request < 40; request++) per_request();
    OK(cuStreamDestroy_v2(per_request()));
}

MAIN(BEHAVIOUR(stream), BEHAVIOUR(stream_with_priority), BEHAVIOUR(event), BEHAVIOUR(module), BEHAVIOUR(library),
     BEHAVIOUR(linker), BEHAVIOUR(graph), BEHAVIOUR(green_context), BEHAVIOUR(texture), BEHAVIOUR(surface),
     BEHAVIOUR(semaphore), BEHAVIOUR(gl_buffer), BEHAVIOUR(gl_image), BEHAVIOUR(egl_image), BEHAVIOUR(vdpau_video),
     BEHAVIOUR(vdpau_output), BEHAVIOUR(user_object), BEHAVIOUR(exec), BEHAVIOUR(context), BEHAVIOUR(destroyed_at_exit),
     BEHAVIOUR(over_time), BEHAVIOUR(exec_in_capture), BEHAVIOUR(decodes), BEHAVIOUR(decodes_and_waits), BEHAVIOUR(captured), BEHAVIOUR(given_user_object),
     BEHAVIOUR(in_context), BEHAVIOUR(over_released), BEHAVIOUR(unseen), BEHAVIOUR(destroyed_early), BEHAVIOUR(exchanged), BEHAVIOUR(churn), BEHAVIOUR(requests))
