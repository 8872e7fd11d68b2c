"""CuPy programs; the first argument selects one."""

import sys

import cupy

from printing import digest, fact, leak, leave, live, result


def compute():
    x = cupy.arange(10_000, dtype=cupy.float32)
    y = cupy.sqrt(x) * 3 + 1
    result("sqrt", digest(cupy.asnumpy(y)), int(x.sum()))


def no_pool():
    """set_allocator(None): each array is a cudaMalloc."""
    cupy.cuda.set_allocator(None)
    compute()
    array = cupy.zeros(123_457, dtype=cupy.uint8)  # site: cupy_leak
    leak(array)
    leak(array.data.mem)
    live("cupy_leak", "device", array.data.ptr, 123_457)


def pooled():
    """The default pool: its total is the memory that the driver allocated for it."""
    compute()
    kept = [cupy.ones((i + 1) * 300_000, dtype=cupy.float32) for i in range(5)]
    result("sum", sum(float(a.sum()) for a in kept))
    fact("total_bytes", cupy.get_default_memory_pool().total_bytes())
    leave()


{f.__name__: f for f in (no_pool, pooled)}[sys.argv[1]]()
