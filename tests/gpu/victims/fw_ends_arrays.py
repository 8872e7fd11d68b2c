"""Programs on CuPy, numba and JAX that hold arrays when the script ends; the first argument selects one.

The last act of each is to print what the framework itself counts."""

import sys

from printing import fact, needs

held = []


def cupy():
    """Arrays of a pool that never had others, and page-locked memory."""
    needs("cupy")
    import cupy

    for number in range(8):
        held.append(cupy.zeros((number + 1) * 100_000, dtype=cupy.uint8))  # site: ends_cupy
    for _ in range(3):
        held.append(cupy.cuda.alloc_pinned_memory(1 << 20))  # site: ends_cupy_pinned
    pool = cupy.get_default_memory_pool()
    if pool.used_bytes() != pool.total_bytes():
        sys.exit(f"the pool has free blocks: {pool.total_bytes() - pool.used_bytes()} bytes")
    fact("end_bytes", pool.used_bytes())
    fact("held_ends_cupy", pool.used_bytes())
    fact("held_ends_cupy_pinned", sum(pointer.mem.size for pointer in held[-3:]))


def numba(count=8):
    """Device arrays. numba frees arrays in an `atexit` callback, in batches of eleven."""
    needs("numba", "numpy")
    import numpy as np

    # numba-cuda 0.2x looks up this name at import; NumPy 2.5 removed it (it was an alias).
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack
    from numba import cuda

    for number in range(int(count)):
        held.append(cuda.device_array((number + 1) * 10_000, dtype=np.uint8))  # site: ends_numba
    fact("end_bytes", sum(array.nbytes for array in held))
    fact("held_ends_numba", sum(array.nbytes for array in held))


def jax():
    """Buffers: put on the device, and results."""
    needs("jax", "numpy")
    import jax
    import numpy as np

    for number in range(1, 9):
        held.append(jax.device_put(np.full((100, number * 100), number, dtype=np.int32)))  # site: ends_jax
    twice = jax.jit(lambda array: array * 2)
    held.append(twice(held[0]))
    jax.block_until_ready(held)
    fact("end_bytes", sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted()))
    fact("held_ends_jax", sum(array.nbytes for array in held[:8]))


PROGRAMS = (cupy, numba, jax)
{f.__name__: f for f in PROGRAMS}[sys.argv[1]](*sys.argv[2:])
