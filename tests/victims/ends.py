"""Memory that Python objects hold when the script ends. Prints the addresses that are live then, and the one that an atexit
callback frees."""

import atexit
import contextvars
import ctypes
import gc
import json
import os
import sys
import threading
import weakref

driver = ctypes.CDLL("libcuda.so.1")
for function in ("cuMemAlloc_v2", "cuMemFree_v2"):
    getattr(driver, function).restype = ctypes.c_int
free = driver.cuMemFree_v2
free.argtypes = [ctypes.c_uint64]

live = set()


class Block:
    """Memory that is freed with the object."""

    def __init__(self, size, free=free):
        address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        self.address = address.value
        self.free = free
        live.add(self.address)

    # Module globals may be gone: everything it needs is its own.
    def __del__(self, discard=live.discard):
        self.free(self.address)
        discard(self.address)


def begin():
    driver.cuInit(0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


history = []


def growing_list():
    for _ in range(20):
        history.append(Block(1000))


def cycle():
    gc.disable()
    for _ in range(3):
        block = Block(2000)
        block.itself = block


def cache(key, found={}):
    return found.setdefault(key, Block(3000))


def generator():
    block = Block(4000)
    yield block
    del block


class Registry:
    entries = {}


variable = contextvars.ContextVar("variable")


def hold():
    begin()
    growing_list()
    cycle()
    cache("a")
    cache("b")
    Registry.entries["x"] = Block(5000)
    variable.set(Block(6000))
    global suspended
    suspended = generator()
    next(suspended)
    # Freed by the script itself.
    temporary = Block(7000)
    del temporary
    # Never freed.
    forgotten = Block(8000)
    forgotten.__class__ = object_without_free
    # From 3.9 on, what callbacks free is held at the end.
    early = [Block(9000)]
    atexit.register(early.clear)
    print(json.dumps([sorted(live), early[0].address]), flush=True)


def objects():
    """Streams and memory of a list that an exit callback empties."""
    begin()
    streams = [ctypes.c_void_p() for _ in range(3)]
    for stream in streams:
        assert driver.cuStreamCreate(ctypes.byref(stream), 0) == 0
    blocks = [Block(1000)]

    def clean_up():
        blocks.clear()
        for stream in streams:
            driver.cuStreamDestroy_v2(stream)

    atexit.register(clean_up)


def finalizes_early():
    """As `finalizes_late`, but the callback of `weakref` itself is registered before the first allocation."""
    weakref.finalize(begin, int)
    finalizes_late()


def finalizes_late():
    """Memory that only `weakref.finalize` frees, in an exit callback."""
    begin()
    blocks = [Block(1000)]
    weakref.finalize(begin, blocks.clear)
    print(json.dumps([sorted(live), 0]), flush=True)


class object_without_free:
    pass


def model():
    """Memory that a module-level list holds until the interpreter finalizes, and a peak before."""
    begin()
    batch = [Block(10000), Block(20000)]
    growing_list()
    del batch
    print(json.dumps([sorted(live), 0]), flush=True)


def forget():
    """Nothing that the interpreter's shutdown frees."""
    begin()
    forgotten = Block(8000)
    forgotten.__class__ = object_without_free
    print(json.dumps([sorted(live), 0]), flush=True)


def tensors():
    """As `hold`, with blocks of PyTorch's allocator, of which two libraries are the stand-ins."""
    allocator, _ = (ctypes.CDLL(path) for path in sys.argv[2:4])
    allocator.stand_in_malloc.restype = ctypes.c_void_p
    allocator.stand_in_malloc.argtypes = [ctypes.c_size_t]
    allocator.stand_in_address.restype = ctypes.c_uint64
    allocator.stand_in_address.argtypes = allocator.stand_in_free.argtypes = [ctypes.c_void_p]

    class Tensor(Block):
        def __init__(self, size, free=allocator.stand_in_free):
            block = allocator.stand_in_malloc(size)
            self.address = allocator.stand_in_address(block)
            self.free = lambda address: free(block)
            live.add(self.address)

    globals()["Block"] = Tensor
    hold()


def in_thread():
    ready = threading.Event()

    def work():
        begin()
        block = Block(500)
        ready.set()
        threading.Event().wait()
        print(block)

    threading.Thread(target=work, daemon=True).start()
    ready.wait(20)
    hold()


class Late:
    """Allocates while the interpreter finalizes, before anything is freed."""

    def __del__(self, allocate=driver.cuMemAlloc_v2, new=ctypes.c_uint64, size=ctypes.c_size_t(77), at=ctypes.byref):
        allocate(at(new()), size)


def allocates_late():
    begin()
    never_freed = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(never_freed), ctypes.c_size_t(1000)) == 0
    global late
    late = Late()


def sys_exit():
    hold()
    sys.exit(3)


def exception():
    hold()
    raise ValueError("nobody catches it")


def leave_at_once():
    hold()
    os._exit(0)


def forked():
    child = os.fork()
    if child == 0:
        hold()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status


def multiprocess(method):
    import multiprocessing

    if multiprocessing.current_process().name != "MainProcess":
        return
    context = multiprocessing.get_context(method)
    process = context.Process(target=hold)
    process.start()
    process.join()
    assert process.exitcode == 0, process.exitcode


if __name__ == "__main__":
    case = sys.argv[1]
    if case in ("spawn", "forkserver"):
        multiprocess(case)
    else:
        globals()[case]()
