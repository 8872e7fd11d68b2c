"""Allocates blocks of 1, 2, 3 … bytes, each in a function of its own, and writes a line to the file after each."""

import ctypes
import os
import sys

driver = ctypes.CDLL("libcuda.so.1")
said = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
device, context = ctypes.c_int(), ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert driver.cuCtxSetCurrent(context) == 0


def allocate(size):
    assert driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size)) == 0


scopes = []
for number in range(1, 301):
    scope = {"allocate": allocate}
    exec(f"def function_{number}():\n    allocate({number})", scope)
    scope[f"function_{number}"]()
    scopes.append(scope)
    os.write(said, b"%d\n" % number)
