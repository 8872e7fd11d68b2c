"""Memory that is held (1000 bytes), in a cycle (2000) or lost (3000) when the script ends, when memory runs out, or when the
process leaves."""

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading

driver = ctypes.CDLL("libcuda.so.1")
allocate, free = driver.cuMemAlloc_v2, driver.cuMemFree_v2
for function in (allocate, free):
    function.restype = ctypes.c_int
free.argtypes = [ctypes.c_uint64]


class Block:
    """Memory that is freed with the object, which contains a pointer to it."""

    def __init__(self, size, free=free):
        self.pointer = ctypes.c_uint64()
        assert allocate(ctypes.byref(self.pointer), ctypes.c_size_t(size)) == 0
        self.free = free

    def __del__(self):
        self.free(self.pointer)


def begin():
    driver.cuInit(0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


keep = []


def hold():
    keep.append(Block(1000))


def cycle():
    gc.disable()
    block = Block(2000)
    block.itself = block


def lose():
    pointer = ctypes.c_uint64()
    assert allocate(ctypes.byref(pointer), ctypes.c_size_t(3000)) == 0
    pointer.value = 0


def all_of_them():
    hold()
    cycle()
    lose()


def run_out_of_memory():
    all_of_them()
    pointer = ctypes.c_uint64()
    assert allocate(ctypes.byref(pointer), ctypes.c_size_t(1 << 60)) == 2
    keep.clear()
    gc.collect()


def forks():
    """Two children that wait at their ends at the same time."""
    children = [os.fork(), 0]
    if children[0]:
        children[1] = os.fork()
    if not all(children):
        begin()
        all_of_them()
        sys.exit(0)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0


def main(case):
    if case == "forks":
        return forks()
    begin()
    if case == "out_of_memory":
        run_out_of_memory()
    elif case == "only_held":
        hold()
    else:
        all_of_them()
    if case == "early":
        # The script's own clean-up.
        atexit.register(keep.clear)
    if case == "leave_at_once":
        os._exit(3)
    if case == "without_handlers":
        # The interpreter restores no handler then.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if case == "thread":
        # Runs until the process ends.
        threading.Thread(target=threading.Event().wait, daemon=True).start()


main(sys.argv[1])
