"""Leaks of each kind, for an agent to find: `planted.py CASE REQUESTS [fixed]`. A model is loaded once and held; each request leaves
something behind, unless it is fixed. A comment `leak: CASE` marks the line that allocates it, `holder: CASE` what holds it."""

import ctypes
import gc
import os
import sys

driver = ctypes.CDLL("libcuda.so.1")
driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]
MIB = 1 << 20


class Tensor:
    def __init__(self, pointer):
        self.pointer = pointer

    def __del__(self, free=driver.cuMemFree_v2):
        free(self.pointer)


def begin():
    driver.cuInit(0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def load_model():
    pointer = ctypes.c_uint64()
    driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 * MIB))
    return Tensor(pointer)


responses = {}  # holder: cache


def answer(request):
    pointer = ctypes.c_uint64()
    driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MIB))  # leak: cache
    responses[request] = Tensor(pointer)
    if fixed and len(responses) > 2:
        del responses[min(responses)]


class Session:
    """Refers to itself, so it lives until garbage is collected."""

    def __init__(self):
        pointer = ctypes.c_uint64()
        driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MIB))  # leak: cycle
        self.memory = Tensor(pointer)
        if not fixed:
            self.handlers = {"done": self.close}  # holder: cycle

    def close(self):
        pass


class Metrics:
    def __init__(self):
        self.losses = []  # holder: attribute

    def add(self, loss):
        self.losses.append(float(loss.pointer.value & 1) if fixed else loss)


metrics = Metrics()


def train():
    pointer = ctypes.c_uint64()
    driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MIB))  # leak: attribute
    metrics.add(Tensor(pointer))


case, requests, fixed = sys.argv[1], int(sys.argv[2]), "fixed" in sys.argv
gc.disable()
begin()
model = load_model()
for request in range(requests):
    {"cache": lambda: answer(request), "cycle": Session, "attribute": train}[case]()
if "waits" in sys.argv:
    print("READY", os.getpid(), flush=True)
    sys.stdin.readline()
