"""Calls the driver step by step, each step on a command of stdin, so that the ledger can be read from outside after each one.

It uses the driver alone: no runtime, no library. None of it depends on culeak."""

import ctypes
import os
import random
import sys

cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20
kept = []

KERNELS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry plain() { ret; }
.visible .entry deep(.param .u64 out)
{
    .local .align 16 .b8 frame[16384];
    .reg .b32 %r<4>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, frame;
    cvta.local.u64 %rd3, %rd2;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd4, %r1, 4;
    add.u64 %rd5, %rd3, %rd4;
    st.volatile.u32 [%rd5], %r1;
    ld.volatile.u32 %r2, [%rd5+64];
    st.global.u32 [%rd1], %r2;
    ret;
}
"""


def ok(result, what):
    if result != 0:
        sys.exit(f"{what} returned {result}")


def call(name, *arguments):
    ok(getattr(cuda, name)(*arguments), name)


def handle(name, *arguments):
    """Calls a function that stores a handle through its first argument."""
    out = ctypes.c_void_p()
    call(name, ctypes.byref(out), *arguments)
    return out


def allocate(size):
    return handle("cuMemAlloc_v2", ctypes.c_size_t(size))


def stack_limit(size):
    call("cuCtxSetLimit", 0, ctypes.c_size_t(size))


def small_limit():
    stack_limit(256)


def large_limit():
    stack_limit(65536)


def usual_limit():
    stack_limit(1024)


def blocks():
    kept.extend(allocate(size) for size in (1, 511, 4096, MIB, MIB + 1, 2 * MIB, 5 * MIB + 7, 32 * MIB + 1))


def churn():
    """24,000 allocations and frees."""
    chance, live = random.Random(14), []
    for _ in range(24_000):
        if live and (len(live) > 400 or chance.random() < 0.5):
            call("cuMemFree_v2", live.pop(chance.randrange(len(live))))
        else:
            live.append(allocate(int(2 ** chance.uniform(0, 22.5))))
    kept.extend(live)


def pools():
    """A block from the device's own pool."""
    kept.append(handle("cuMemAllocAsync", ctypes.c_size_t(1000), None))
    call("cuStreamSynchronize", None)


def streams():
    kept.extend(handle("cuStreamCreate", 1) for _ in range(200))


def fewer_streams():
    for _ in range(100):
        call("cuStreamDestroy_v2", kept.pop())


class Array(ctypes.Structure):
    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int), ("channels", ctypes.c_uint)]


def arrays():
    float32 = 0x20
    kept.extend(handle("cuArrayCreate_v2", ctypes.byref(Array(1000, 1000, float32, 1))) for _ in range(3))


def launch(name, *parameters, stream=None):
    kernel = handle("cuModuleGetFunction", module(), name.encode())
    pointers = (ctypes.c_void_p * len(parameters))(*[ctypes.cast(ctypes.byref(p), ctypes.c_void_p) for p in parameters])
    call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, pointers if parameters else None, None)


loaded = []


def module():
    if not loaded:
        loaded.append(handle("cuModuleLoadData", KERNELS))
    return loaded[0]


def plain_kernel():
    launch("plain")
    call("cuCtxSynchronize")


def deep_kernel():
    """16 KiB of local memory for each thread."""
    out = allocate(4)
    kept.append(out)
    launch("deep", out)
    call("cuCtxSynchronize")


def graphs():
    """100 executables of 50 nodes, captured as llama.cpp does."""
    stream = handle("cuStreamCreate", 1)
    for _ in range(100):
        call("cuStreamBeginCapture_v2", stream, 2)
        for _ in range(50):
            launch("plain", stream=stream)
        graph = ctypes.c_void_p()
        call("cuStreamEndCapture", stream, ctypes.byref(graph))
        executable = handle("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))
        call("cuGraphLaunch", executable, stream)
        call("cuGraphDestroy", graph)
        kept.append(executable)
    call("cuStreamSynchronize", stream)


call("cuInit", 0)
context = handle("cuDevicePrimaryCtxRetain", 0)
call("cuCtxSetCurrent", context)
print("READY", os.getpid(), flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "quit":
        break
    globals()[word]()
    print("DONE", word, flush=True)
