"""Allocates through the fake driver, as the process of a job: worker.py ROUNDS [PAUSE]. Some rounds leak."""

import ctypes
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")


pointer = ctypes.c_uint64()
size = ctypes.c_size_t


def step():
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), size(3 << 20)) == 0


def load():
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), size(64 << 20)) == 0


def scratch():
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), size(512 << 20)) == 0
    assert cuda.cuMemFree_v2(pointer) == 0


def keep():
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), size(1 << 20)) == 0


assert cuda.cuInit(0) == 0
context = ctypes.c_void_p()
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
load()
scratch()
keep()
for _ in range(int(sys.argv[1])):
    step()
    print("round", flush=True)
    if len(sys.argv) > 2:
        sys.stdin.readline() if sys.argv[2] == "wait" else time.sleep(float(sys.argv[2]))
