"""Objects like those of RMM, in a program that is never recorded.

The state of a generator of random numbers is 625 numbers of 32 bits in the object itself: two in place of the table of virtual functions,
then the address of the buffer.
"""

import _random
import ctypes
import mmap
import pathlib
import sys
import types

file = pathlib.Path(sys.argv[1]) / "rmm/pylibrmm/device_buffer.so"
file.parent.mkdir(parents=True)
file.write_bytes(bytes(4096))
with file.open("rb") as opened:
    mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


class DeviceBuffer(_random.Random):
    """The address of its buffer is its second word."""

    __slots__ = ("buffer",)


module = types.ModuleType("rmm.pylibrmm.device_buffer")
module.DeviceBuffer = DeviceBuffer
sys.modules["rmm.pylibrmm.device_buffer"] = module


def holder(address):
    made = DeviceBuffer()
    made.setstate((0, address & 0xFFFFFFFF, address >> 32) + (0,) * 621 + (0,))
    return made


def buffer(*words):
    made = (ctypes.c_uint64 * 8)(*words)
    holds = holder(ctypes.addressof(made))
    holds.buffer = made
    return holds


STREAM = 0x55_5555_5555_0000
# Data, size, capacity, stream; and with an alignment between size and capacity.
kept = [buffer(0x7E0000000000 + number * 0x10000, 1000, 1 << 12, STREAM) for number in range(20)]
aligned = [buffer(0x7F0000000000 + number * 0x10000, 1000, 256, 1024, STREAM) for number in range(3)]
on_default_stream = buffer(0x7D0000000000, 256, 256, 0)
empty = [buffer(0, 0, 0, 0), holder(0)]
# Not memory, but the class behind a count.
classes = (DeviceBuffer, 7, 8)
history = []
print(24, 20 * 4096 + 3 * 1024 + 256, flush=True)
print("ready", flush=True)
for number, _ in enumerate(sys.stdin):
    kept.extend(buffer(0x7C0000000000 + (number * 5 + nth) * 0x10000, 1000, 1 << 12, STREAM) for nth in range(5))
    history.extend(b"x" * size for size in [10_000] * 3000)
    print("grown", flush=True)
