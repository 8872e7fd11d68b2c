"""Objects like those of RMM, in a program that is never recorded: `unrecorded_rmm.py FOLDER [VERSION]`.

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
sys.modules["rmm"] = types.ModuleType("rmm")
sys.modules["rmm"].__version__ = VERSION = sys.argv[2] if len(sys.argv) > 2 else "26.10.00"
RESOURCE = 0x7A7A7A7A7A7A7A7A


def holder(address):
    made = DeviceBuffer()
    made.setstate((0, address & 0xFFFFFFFF, address >> 32) + (0,) * 621 + (0,))
    return made


def buffer(data, used, capacity, stream, device=1):
    """A buffer as this version lays it out. What is behind a device is not of the buffer."""
    words = [data, used, *([256] if VERSION >= "26.06" else []), capacity, stream]
    if VERSION < "23.12":
        words += [RESOURCE]
    else:
        # A resource that is its own is aligned to two words.
        own = [RESOURCE] * (6 + len(words) % 2)
        words += own if VERSION >= "26.02" else [RESOURCE] * 2
        words += [device | 0x7A7A7A7A << 32]
    made = (ctypes.c_uint64 * 16)(*words, *([RESOURCE] * (16 - len(words))))
    holds = holder(ctypes.addressof(made))
    holds.buffer = made
    return holds


STREAM = 0x55_5555_5555_0000
kept = [buffer(0x7E0000000000 + number * 0x10000, 1000, 1 << 12, STREAM) for number in range(20)]
small = [buffer(0x7F0000000000 + number * 0x10000, 1000, 1024, STREAM) for number in range(3)]
on_default_stream = buffer(0x7D0000000000, 256, 256, 0, device=0)
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
