"""Memory of the device, without a framework."""

import ctypes

_driver = ctypes.CDLL("libcuda.so.1")
_driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]
_is_ready = False


def start():
    global _is_ready
    if not _is_ready:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        assert _driver.cuInit(0) == 0
        assert _driver.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert _driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert _driver.cuCtxSetCurrent(context) == 0
        _is_ready = True


def allocate(size):
    start()
    address = ctypes.c_uint64()
    assert _driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    return address.value


def free(address):
    assert _driver.cuMemFree_v2(address) == 0
