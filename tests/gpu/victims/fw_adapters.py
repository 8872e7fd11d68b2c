"""Programs whose frameworks have pools of their own, with culeak's adapters; the first argument selects one.

`request` leaks 5,000 bytes, or one page. `bench NAME` prints microseconds of an allocation and a free; it is no claim.
"""

import ctypes
import os
import sys
import threading
import time
import types

import culeak.adapters
from printing import fact, leave, live, needs, result

LEAKED = 6
kept = []


def request(serve):
    kept.append(serve())


def elsewhere(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def cupy():
    needs("cupy")
    culeak.adapters.cupy.enable()
    import cupy as cp

    pool = cp.get_default_memory_pool()
    for number in range(LEAKED):
        arrays = [cp.ones(1000 * (n + 1), dtype=cp.float32) for n in range(4)]
        result("sum", float(sum(array.sum() for array in arrays)))
        elsewhere(arrays.clear)
        request(lambda: cp.zeros(5000, dtype=cp.uint8))
        # A view keeps the whole block.
        views = [cp.arange(9000 + number, dtype=cp.uint8)[10:20]]
        elsewhere(lambda: kept.append(views.pop()))
    for array in kept:
        mem = array.data.mem
        live("cupy", "block", mem.ptr, array.nbytes if array.base is None else array.base.nbytes)
    result("used", pool.used_bytes(), len(kept))
    leave()


def rmm():
    needs("rmm")
    culeak.adapters.rmm.enable()
    import rmm as r

    r.reinitialize(pool_allocator=True, initial_pool_size=1 << 26)
    pool = r.mr.get_current_device_resource()
    result("pool", type(pool).__name__, pool.pool_size())
    for _ in range(LEAKED):
        work = [r.DeviceBuffer(size=1 << 16) for _ in range(4)]
        elsewhere(work.clear)
        request(lambda: r.DeviceBuffer(size=5000))
    for buffer in kept:
        live("rmm", "block", buffer.ptr, buffer.size)
    leave()


def allocator():
    import torch

    library = os.environ["PLUGGABLE"]
    return torch, torch.cuda.memory.CUDAPluggableAllocator(library, "my_malloc", "my_free")


def pluggable():
    needs("torch")
    culeak.adapters.torch.enable()
    torch, made = allocator()
    torch.cuda.memory.change_current_allocator(made)
    for _ in range(LEAKED):
        work = torch.ones(12345, device="cuda")
        result("sum", float(work.cpu().sum()))
        request(lambda: torch.zeros(5000, dtype=torch.uint8, device="cuda"))
        del work
    for tensor in kept:
        live("pluggable", "block", tensor.data_ptr(), tensor.nbytes)
    leave()


def mem_pool():
    needs("torch")
    culeak.adapters.torch.enable()
    torch, made = allocator()
    pool = torch.cuda.MemPool(made.allocator())
    with torch.cuda.use_mem_pool(pool):
        request(lambda: torch.ones(100_000, device="cuda"))
    kept.append(torch.ones(100_000, device="cuda"))
    result("sums", *(float(tensor.sum()) for tensor in kept))
    fact("pool_first", pool.id[0])
    fact("pool_second", pool.id[1])
    fact("segments", sum(segment["total_size"] for segment in pool.snapshot()))
    leave()


def tensorflow():
    needs("tensorflow")
    culeak.adapters.tensorflow.enable()
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        print(f"UNSUPPORTED {os.getpid()} TensorFlow with CUDA", flush=True)
        sys.exit(0)
    with tf.device("GPU:0"):
        for _ in range(LEAKED):
            work = tf.ones((300, 300))
            result("sum", float(tf.reduce_sum(work @ work)))
            request(lambda: tf.zeros((5000,), dtype=tf.uint8))
            del work
    for tensor in kept:
        capsule = tf.experimental.dlpack.to_dlpack(tensor)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # A DLManagedTensor begins with the address of the data.
        address = ctypes.c_uint64.from_address(pointer(capsule, b"dltensor")).value
        live("tensorflow", "block", address, int(tf.size(tensor)))
    fact("in_use", tf.config.experimental.get_memory_info("GPU:0")["current"])
    leave()


class Cache:
    def get_kv_size_bytes(self):
        return 1 << 20, 1 << 20


def kv_pools(torch):
    """SGLang's two allocators, in a module of its name: page numbers that are free are a tensor on the device."""

    class TokenToKVPoolAllocator:
        def __init__(self, size, page_size):
            self.size, self.page_size = size, page_size
            self.clear()

        def clear(self):
            self.free_pages = torch.arange(1, self.size // self.page_size + 1, device="cuda")
            self.free_group = None

        def get_kvcache(self):
            return Cache()

        def available_size(self):
            return len(self.free_pages) * self.page_size

        def alloc(self, need_size):
            count = need_size // self.page_size
            taken, self.free_pages = self.free_pages[:count], self.free_pages[count:]
            return (taken[:, None] * self.page_size + torch.arange(self.page_size, device="cuda")).reshape(-1)

        def free(self, free_index):
            self.free_pages = torch.cat((self.free_pages, free_index))

    class PagedTokenToKVPoolAllocator(TokenToKVPoolAllocator):
        def free(self, free_index):
            # Without `unique`, which waits for the device.
            self._release_page_ids(free_index[:: self.page_size] // self.page_size)

        def _release_page_ids(self, *page_ids):
            self.free_pages = torch.cat((*page_ids, self.free_pages))

    module = types.ModuleType("sglang.srt.mem_cache.allocator")
    module.TokenToKVPoolAllocator = TokenToKVPoolAllocator
    module.PagedTokenToKVPoolAllocator = PagedTokenToKVPoolAllocator
    sys.modules[module.__name__] = module
    culeak.adapters.sglang.enable()
    return TokenToKVPoolAllocator(10_000, 1), PagedTokenToKVPoolAllocator(16_000, 16)


def sglang():
    needs("torch")
    import torch

    pools = kv_pools(torch)
    # Fills the caches of PyTorch, whose misses wait.
    for pool in pools:
        for _ in range(20):
            pool.free(pool.alloc(320))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    done = torch.cuda.Event()
    done.record()
    for pool in pools:
        for _ in range(LEAKED):
            work = pool.alloc(160)
            request(lambda: pool.alloc(pool.page_size))
            pool.free(work)
    fact("waited", done.query())
    torch.cuda.synchronize()
    for pool in pools:
        known = pool.__dict__.get("_culeak")
        while known is not None and known.moving:
            time.sleep(0.01)
    in_use = sum((pool.size - pool.available_size()) // pool.page_size for pool in pools)
    result("pages", in_use)
    fact("pages", in_use)
    fact("leaked", len(kept))
    leave()


def bench():
    name = sys.argv[2]
    if name == "cupy":
        culeak.adapters.cupy.enable()
        import cupy as cp

        work = lambda: cp.cuda.alloc(5000)  # noqa: E731
    elif name == "rmm":
        culeak.adapters.rmm.enable()
        import rmm as r

        r.reinitialize(pool_allocator=True, initial_pool_size=1 << 26)
        work = lambda: r.DeviceBuffer(size=5000)  # noqa: E731
    else:
        import torch

        pool = kv_pools(torch)[1]
        work = lambda: pool.free(pool.alloc(160))  # noqa: E731
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(2000):
            work()
        best = min(best, (time.perf_counter() - start) / 2000)
    print(f"{name} {best * 1e6:.2f} us", flush=True)
    os._exit(0)


{f.__name__: f for f in (bench, cupy, mem_pool, pluggable, rmm, sglang, tensorflow)}[sys.argv[1]]()
