"""The allocator of wrapped.py."""

import ctypes

driver = ctypes.CDLL("libcuda.so.1")


def begin():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def checked_malloc(size):
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    return address.value


def gpu_alloc(size):
    return checked_malloc(size)


class DeviceBuffer:
    def __init__(self, size):
        self.address = gpu_alloc(size)
