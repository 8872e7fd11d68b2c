# 25 blocks on GPU 0, at most 30 MiB at a time; two of them in a memory pool. Run by memory_viz.mjs.
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *args):
    result = getattr(cuda, name)(*args)
    assert result == 0, (name, result)
def memory(function, *more):
    at = ctypes.c_uint64()
    call(function, ctypes.byref(at), *more)
    return at
def alloc(mib):
    return memory("cuMemAlloc_v2", ctypes.c_size_t(mib << 20))
context, pool, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuStreamCreate", ctypes.byref(stream), 0)
kept = [alloc(mib) for mib in (1, 2, 3)]
class Props(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int), ("id", ctypes.c_int), ("rest", ctypes.c_char * 72)]
call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(Props(1, 0, 1, 0)))
in_pool = [memory("cuMemAllocFromPoolAsync", ctypes.c_size_t(mib << 20), pool, stream) for mib in (4, 5)]
for step in range(10):
    batch = [alloc(mib) for mib in (7, 8)]
    for at in reversed(batch):
        call("cuMemFree_v2", at)
call("cuMemFreeAsync", in_pool[0], stream)
