"""Objects like those of CuPy's pools, in a program that is never recorded.

The state of a generator of random numbers is 625 numbers of 32 bits in the object itself: a position of at most 624, then any values.
"""

import _random
import mmap
import pathlib
import struct
import sys
import types

file = pathlib.Path(sys.argv[1]) / "cupy/cuda/memory.so"
file.parent.mkdir(parents=True)
file.write_bytes(bytes(4096))
with file.open("rb") as opened:
    mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


class PooledMemory(_random.Random):
    """Its address, its bytes, and its device."""

    __slots__ = ()


class Memory(PooledMemory):
    """Memory of no pool, or what a pool has."""

    __slots__ = ()


class _Chunk(_random.Random):
    """A part of what a pool has."""

    __slots__ = ()


memory = types.ModuleType("cupy.cuda.memory")
memory.PooledMemory, memory.Memory, memory._Chunk = PooledMemory, Memory, _Chunk
sys.modules["cupy.cuda.memory"] = memory


def block(number, size, of=PooledMemory):
    """Memory at an address 512 bytes behind a multiple of 4 GiB."""
    made = of()
    made.setstate((number, size) + (0,) * 622 + (512 if number else 0,))
    return made


kept = [block(0x7000 + number, 1024) for number in range(5)]
plans = {"fft": block(0x7100, 1 << 20)}
given_back = [block(0, 512)]
templates = [block(0x7200, 3000, of=Memory)]
pool = [block(0x7300, 1 << 22, of=Memory), _Chunk()]
memory_of, part = pool
part.setstate((0, id(memory_of) & 0xFFFFFFFF, id(memory_of) >> 32) + (0,) * 622)
# Not memory, but the class behind a count: in tuples, and where no object begins.
classes = [(PooledMemory, number) for number in range(60)]
words = struct.pack("4Q", 0, 3, id(PooledMemory), 7) * 60
print(7, 5 * 1024 + (1 << 20) + 3000, flush=True)
print("ready", flush=True)
sys.stdin.read()
