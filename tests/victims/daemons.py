"""Daemon threads that allocate and free continuously while the interpreter shuts down."""

import ctypes
import threading
import time

driver = ctypes.CDLL("libcuda.so.1")
driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]
driver.cuInit(0)
device, context = ctypes.c_int(), ctypes.c_void_p()
assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0


def work(depth):
    if depth:
        return work(depth - 1)
    driver.cuCtxSetCurrent(context)
    address = ctypes.c_uint64()
    while True:
        driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(256))
        driver.cuMemFree_v2(address)


for depth in (1, 5, 10):
    threading.Thread(target=work, args=(depth,), daemon=True).start()
time.sleep(0.1)
