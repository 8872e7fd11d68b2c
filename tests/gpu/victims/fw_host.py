"""A PyTorch program whose host memory grows: the argument says by what. Each `grow` adds as much as was there at READY.

    pinned    buffers of 8 MiB in pinned memory
    python    small objects of Python
    native    chunks of malloc, which C code of the program keeps
"""

import ctypes
import itertools
import os
import sys

import torch

from printing import fact, leave

MIB = 1 << 20
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
history = []


def pinned():
    """128 MiB, all of it written."""
    history.extend(torch.ones(8 * MIB, dtype=torch.uint8).pin_memory() for _ in range(16))
    return 16 * 8 * MIB


def python():
    """300,000 tuples of two numbers, all of them small objects."""
    history.extend((float(number), number << 40) for number in range(300_000))
    # The head of the collector is before a tuple, and memory comes in units of 16 bytes.
    sizes = ([sys.getsizeof(each) + 16, *map(sys.getsizeof, each)] for each in itertools.islice(history, 300_000))
    return sum((size + 15) // 16 * 16 for each in sizes for size in each)


def native():
    """1,500 chunks of 64 KiB, which a table of native memory has."""
    table = libc.malloc(8 * 1500)
    for number in range(1500):
        chunk = libc.malloc(64 << 10)
        libc.memset(chunk, number % 255 + 1, 64 << 10)
        ctypes.c_void_p.from_address(table + 8 * number).value = chunk
    history.append(ctypes.c_void_p(table))
    return 1500 * (64 << 10)


grow = {of.__name__: of for of in (pinned, python, native)}[sys.argv[1]]
weights = torch.ones(1024, 1024, device="cuda")
torch.cuda.synchronize()
fact("added", grow())
print("READY", os.getpid(), flush=True)
for line in sys.stdin:
    if line.strip() == "quit":
        break
    grow()
    print("DONE", line.strip(), flush=True)
leave()
