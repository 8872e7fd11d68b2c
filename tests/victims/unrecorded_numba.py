"""Objects like those of numba's memory, in a program that is never recorded."""

import ctypes
import gc
import mmap
import os
import pathlib
import sys
import types
import weakref

file = pathlib.Path(sys.argv[1]) / "numba/cuda/cext/_helperlib.so"
file.parent.mkdir(parents=True)
file.write_bytes(bytes(4096))
with file.open("rb") as opened:
    mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


class Device:
    def __init__(self, number):
        self.id = number


class Context:
    def __init__(self, device):
        self.device = device


class MemoryPointer:
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.context, self.device_pointer, self.size = context, pointer, size
        self._cuda_memsize_, self.is_managed, self.refct, self.handle = size, finalizer is not None, 1, pointer
        self._owner = owner


class AutoFreePointer(MemoryPointer):
    pass


class MappedMemory(AutoFreePointer):
    pass


class ManagedMemory(AutoFreePointer):
    pass


driver = types.ModuleType("numba.cuda.cudadrv.driver")
driver.MemoryPointer, driver.AutoFreePointer, driver.ManagedMemory = MemoryPointer, AutoFreePointer, ManagedMemory
sys.modules["numba.cuda.cudadrv.driver"] = driver
devices = [Device(number) for number in range(2)]
contexts = [Context(weakref.proxy(device)) for device in devices]


def memory(address, size, of=AutoFreePointer, **options):
    return of(weakref.proxy(contexts[address % 2]), ctypes.c_void_p(address), size, **options)


def allocated(number, **options):
    return memory(0x7E0000000000 + number * 0x1000 + number % 2, 1000 + number, finalizer=print, **options)


kept = [allocated(number) for number in range(20)] + [allocated(40, of=ManagedMemory)]
views = [memory(0x7E0000000010, 8, of=MemoryPointer, owner=kept[0])]
# An opened handle of another process, and arrays without elements.
opened_handle = memory(0x7D0000000000, 1 << 30, of=MemoryPointer)
empty = [MemoryPointer(contexts[0], ctypes.c_void_p(0), 0) for _ in range(40)]
# Its pointer leads nowhere, which the collector must not notice.
gc.disable()
damaged = allocated(30)
damaged.__dict__ = dict(vars(damaged))
word = ctypes.c_uint64.from_address
keys = word(id(vars(damaged)) + 32).value
place = next(at for at in range(keys, keys + 1024, 8) if word(at).value == id(damaged.device_pointer))
word(place).value = 0xFFFFFFFFFFFFFFE0
host = [memory(0x7F0000000000, 4096, of=MappedMemory, finalizer=print)]
# Not memory, but the class behind a count.
classes = [(AutoFreePointer, number) for number in range(60)]
print(21, sum(each.size for each in kept), flush=True)
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
