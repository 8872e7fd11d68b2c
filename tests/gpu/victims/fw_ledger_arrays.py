"""JAX or CuPy with a few arrays, stopped so that its ledger can be read from outside; the first argument selects one."""

import os
import sys

from printing import fact


def use_jax():
    import jax
    import jax.numpy as jnp

    x = jnp.ones((2048, 2048))
    kept = [jax.jit(lambda a, n=n: a @ a.T + n)(x) for n in range(3)]
    kept[-1].block_until_ready()
    return kept


def use_cupy():
    import cupy

    kept = [cupy.ones((i + 1) * 300_000, dtype=cupy.float32) for i in range(5)]
    kept.append(cupy.sqrt(kept[0]) @ kept[0])
    cupy.cuda.runtime.deviceSynchronize()
    fact("total_bytes", cupy.get_default_memory_pool().total_bytes())
    return kept


kept = {"jax": use_jax, "cupy": use_cupy}[sys.argv[1]]()
print("READY", os.getpid(), flush=True)
for line in sys.stdin:
    if line.strip() == "quit":
        break
