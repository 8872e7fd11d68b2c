// Programs that forget an object without an address for each of their requests: an executable graph, as a server that captures
// each shape again; a module, as a compiler that specialises a kernel for each shape.
#include "steps.h"

enum { REQUESTS = 300, NODES = 50, SHAPES = 1000, INSTRUCTIONS = 200 };

static CUcontext context;

static void start(void) {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    step("context");
}

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static void answer_request(CUfunction kernel, CUstream stream, int nodes) {
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int node = 0; node < nodes; node++) OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0)); // site: request_graph
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
}

// The number of nodes changes from request to request, so no executable fits the next one.
CASE(graphs) {
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    start();
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&kernel, module, "nothing"));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamSynchronize(stream));
    step("warm");
    for (int request = 1; request <= REQUESTS; request++) {
        answer_request(kernel, stream, NODES + request % 2);
        if (request % 60 == 0) step("requests");
    }
    fact("forgotten", REQUESTS);
    wait_for_reader();
}

static void write_kernel(char *text, size_t room, int shape) {
    int at = snprintf(text, room,
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry shape_%d(.param .u64 out) {\n.reg .b64 %%rd<2>; .reg .f32 %%f<2>;\n"
        "ld.param.u64 %%rd1, [out]; cvta.to.global.u64 %%rd1, %%rd1;\n", shape);
    // Volatile, so that the code keeps its size.
    for (int i = 0; i < INSTRUCTIONS; i++)
        at += snprintf(text + at, room - at, "ld.volatile.global.f32 %%f1, [%%rd1]; st.volatile.global.f32 [%%rd1], %%f1;\n");
    at += snprintf(text + at, room - at, "ret; }\n");
    if ((size_t)at >= room) failed("write_kernel", at, __FILE__, __LINE__);
}

CASE(modules) {
    static CUmodule modules[SHAPES];
    static char text[64 << 10];
    CUdeviceptr out;
    start();
    OK(cuMemAlloc(&out, 4));
    step("shapes_0");
    for (int shape = 0; shape < SHAPES; shape++) {
        CUfunction kernel;
        char name[32];
        void *arguments[] = {&out};
        write_kernel(text, sizeof text, shape);
        OK(cuModuleLoadData(&modules[shape], text)); // site: shape_module
        snprintf(name, sizeof name, "shape_%d", shape);
        OK(cuModuleGetFunction(&kernel, modules[shape], name));
        OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
        OK(cuCtxSynchronize());
        if ((shape + 1) % 250 == 0) {
            char at[32];
            snprintf(at, sizeof at, "shapes_%d", shape + 1);
            step(at);
        }
    }
    for (int shape = 0; shape < SHAPES; shape += 2) OK(cuModuleUnload(modules[shape]));
    step("shapes_500_left");
    for (int shape = 1; shape < SHAPES; shape += 2) OK(cuModuleUnload(modules[shape]));
    step("unloaded");
    OK(cuMemFree(out));
}

int main(int argc, char **argv) {
    static const Case cases[] = {ENTRY(graphs), ENTRY(modules), {NULL, NULL}};
    return run_case(cases, argc, argv);
}
