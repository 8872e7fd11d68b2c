"""Holders of arrays of JAX, CuPy and numba; the first argument selects one."""

import collections
import contextvars
import functools
import gc
import sys
import threading
import weakref

from holding import holds, keep, questions
from printing import needs


class Cache:
    __slots__ = ("store", "other", "__weakref__")


def zoo(new, address, owner):
    """Keeps arrays in the usual ways. `owner`: what the path names on the way to the memory."""
    def kept(name, *texts, of="held"):
        array = new()
        holds(name, address(array), *([] if of == "cycle" else ["__main__." + name]), *texts, owner, of=of)
        return array

    def closure_of(held):
        return lambda: held

    def generate(held):
        yield held.shape

    def work(ready, held_by_thread):
        ready.set()
        threading.Event().wait()
        print(held_by_thread)

    keep("a_list", [kept("a_list", "[*]")])
    keep("a_dict", {"weights": {"layer": kept("a_dict", "[*]", "[*]")}})
    keep("a_tree", ({"w": [kept("a_tree", "[*]", "[*]", "[*]"), 1]}, None))
    keep("a_closure", closure_of(kept("a_closure", "closure|held")))
    keep("a_partial", functools.partial(print, kept("a_partial", ".args", "[*]")))
    keep("a_generator", generate(kept("a_generator", "local held")))
    next(sys.modules["__main__"].a_generator)
    cache = Cache()
    cache.store = kept("a_cache", ".store")
    keep("a_cache", cache)
    looped = Cache()
    looped.other, looped.store = looped, kept("cycle", "Cache", of="cycle")
    del looped
    array = new()
    # Its finalizer refers to it too, as long as the cache lives.
    watched, circle = Cache(), Cache()
    watched.store = kept("watched", ".store")
    weakref.finalize(watched, print, watched.store)
    keep("watched", watched)
    circle.other, circle.store = circle, kept("cycle_with_finalizer", "Cache", of="cycle")
    weakref.finalize(circle, len, (circle.store,))
    del circle
    keep("a_deque", collections.deque([kept("a_deque", "[*]")]))
    holds("context", address(array), "ontext", owner)
    keep("variable", contextvars.ContextVar("variable"))
    sys.modules["__main__"].variable.set(array)
    ready, array = threading.Event(), new()
    holds("thread", address(array), "work", "local held_by_thread", owner)
    threading.Thread(target=work, args=(ready, array), daemon=True).start()
    del array
    ready.wait()


def sizes(first=300_000, step=1024):
    # No two arrays of a size, so that no pool returns a cached block.
    return iter(range(first, 10**8, step))


def jax():
    needs("jax", "numpy")
    import jax
    import numpy as np

    count = sizes()

    def new():
        array = jax.device_put(np.full((next(count),), 1, dtype=np.int32))
        return jax.block_until_ready(array)

    gc.disable()
    zoo(new, lambda array: array.unsafe_buffer_pointer(), "ArrayImpl")
    holders_of_jax(new)
    # Each array of several devices has the arrays of single devices as well, which share its memory.
    live = lambda: {array.unsafe_buffer_pointer(): array.nbytes for array in jax.live_arrays() if not array.is_deleted()}
    in_use = lambda: sum((device.memory_stats() or {}).get("bytes_in_use", 0) for device in jax.local_devices())
    questions(lambda: sum(live().values()), in_use)


def holders_of_jax(new):
    """What programs of JAX keep arrays in."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def held(name, array, *texts):
        jax.block_until_ready(array)
        holds(name, array.unsafe_buffer_pointer(), "__main__." + name, *texts, "ArrayImpl")
        return array

    @jax.tree_util.register_pytree_node_class
    class State:
        def __init__(self, parameters):
            self.parameters = parameters

        def tree_flatten(self):
            return (self.parameters,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    def jitted():
        constant = held("a_jit", new(), "closure constant|constant")

        @jax.jit
        def scaled(by):
            return (by * constant).sum()

        scaled(jnp.float32(1))
        return scaled

    @functools.lru_cache(maxsize=8)
    def features(_):
        return held("features", new(), "cache")

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state):
        return state + 1

    features(0)
    keep("features", features)
    keep("a_jit", jitted())
    keep("a_state", State({"w": held("a_state", new(), ".parameters", "[*]")}))
    keep("donated", held("donated", step(new())))
    keep("vmapped", held("vmapped", jax.vmap(lambda row: row + 1)(new().reshape(-1, 1))))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None))
    keep("sharded", held("sharded", jax.device_put(np.ones(next(iter(sizes(900_000))), dtype=np.int32), sharding)))
    objects = np.empty(3, dtype=object)
    objects[1] = held("objects", new(), "[*]|native memory|ndarray")
    keep("objects", objects)
    _, pull = jax.vjp(lambda x: (jnp.sin(x) * x).sum(), new().astype(jnp.float32))
    for residual in jax.tree_util.tree_leaves(pull):
        if getattr(residual, "nbytes", 0) > 1_000_000:
            held("pull", residual)
    keep("pull", pull)
    # JAX's caches have parts of it, so dropping it frees more or less than it retains: it has a second holder.
    keep("pulls", [pull])


def cupy():
    needs("cupy")
    import cupy

    count = sizes()
    gc.disable()
    zoo(lambda: cupy.zeros(next(count), dtype=cupy.uint8), lambda array: array.data.ptr, "ndarray")
    questions(cupy.get_default_memory_pool().used_bytes)


def numba():
    needs("numba", "numpy")
    import numpy as np

    # numba-cuda 0.2x looks up this name at import; NumPy 2.5 removed it (it was an alias).
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack
    from numba import cuda

    count = sizes()
    gc.disable()
    zoo(lambda: cuda.device_array(next(count), dtype=np.uint8), lambda array: array.device_ctypes_pointer.value, "DeviceNDArray")
    # numba frees arrays in batches, so its own figure lags behind.
    questions(lambda: 0)


if __name__ == "__main__":
    {f.__name__: f for f in (jax, cupy, numba)}[sys.argv[1]]()
