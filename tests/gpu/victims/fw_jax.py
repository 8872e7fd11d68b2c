"""JAX programs; the first argument selects one."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from printing import digest, fact, leave, result


def compute():
    # Integers: XLA selects its kernels by timing them, and floating-point results differ in the last bits from run to run.
    x = jnp.asarray(np.arange(256 * 256, dtype=np.int32).reshape(256, 256))
    step = jax.jit(lambda a: (a * 3 + a.T) % 1_000_003)
    for _ in range(5):
        x = step(x)
    result("steps", digest(np.asarray(x)), jax.devices()[0].platform)


def preallocated():
    """The default: one slab, a fixed part of the device, never freed."""
    compute()
    stats = jax.devices()[0].memory_stats() or {}
    fact("limit", stats.get("bytes_limit", 0))
    leave()


def platform():
    """XLA_PYTHON_CLIENT_ALLOCATOR=platform: each array is a separate allocation."""
    compute()
    array = jax.device_put(np.ones(1_234_567, dtype=np.uint8))
    array.block_until_ready()
    fact("array", array.unsafe_buffer_pointer())
    leave()


{f.__name__: f for f in (preallocated, platform)}[sys.argv[1]]()
