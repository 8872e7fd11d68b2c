// A host that embeds Python for a while: the script allocates, the interpreter is finalized, and the host goes on.
//     embeds LIBPYTHON
// Prints what is live when main returns.
#include "victim.h"

#include <cuda.h>
#include <dlfcn.h>

enum { BLOCKS = 400 };

static const char script[] =
    "import ctypes\n"
    "driver = ctypes.CDLL('libcuda.so.1')\n"
    "driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]\n"
    "class Block:\n"
    "    def __init__(self, size, free=driver.cuMemFree_v2):\n"
    "        address = ctypes.c_uint64()\n"
    "        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0\n"
    "        self.address, self.free = address.value, free\n"
    "    def __del__(self):\n"
    "        self.free(self.address)\n"
    "held = [Block(5000) for _ in range(50)]\n"
    "forgotten = Block(6000)\n"
    "forgotten.__class__ = type('Forgotten', (), {})\n"
    "forgotten_at(forgotten.address)\n";

static CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes)); // site: embeds
    return address;
}

static void forgotten_at(unsigned long long address) { live("script", "device", address, 6000, 6000); }

int main(int argc, char **argv) {
    void *python = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!python) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "usage: embeds LIBPYTHON");
        return 96;
    }
    void (*initialize)(int) = (void (*)(int))dlsym(python, "Py_InitializeEx");
    int (*run)(const char *) = (int (*)(const char *))dlsym(python, "PyRun_SimpleString");
    int (*finalize)(void) = (int (*)(void))dlsym(python, "Py_FinalizeEx");
    if (!initialize || !run || !finalize) return 95;

    CUdevice device;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    live("before", "device", allocate(1000), 1000, 1000);

    char prepare[200];
    snprintf(prepare, sizeof prepare, "import ctypes\nforgotten_at = ctypes.CFUNCTYPE(None, ctypes.c_ulonglong)(%llu)\n",
             (unsigned long long)(uintptr_t)forgotten_at);
    initialize(0);
    if (run(prepare) != 0 || run(script) != 0) return 94;
    if (finalize() != 0) return 93;

    // More than any interpreter allocates while it shuts down.
    for (int i = 0; i < BLOCKS; i++) {
        CUdeviceptr address = allocate(2000);
        if (i % 2) OK(cuMemFree(address));
        else live("after", "device", address, 2000, 2000);
    }
    return 0;
}
