# Blocks that native memory keeps, alone or besides Python. Prints a line for each block: address in hexadecimal, a tab, and a
# label. Then "ready", and waits.
import ctypes
import sys

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
increment = ctypes.pythonapi.Py_IncRef
increment.argtypes = [ctypes.py_object]
number = [0]


class T(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_uint64), ("pad", ctypes.c_uint64)]


def address(label):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x\t%s" % (at, label))
    return at


def holder(bytes, offset, value):
    t = T()
    t.impl = libc.calloc(1, bytes)
    ctypes.c_uint64.from_address(t.impl + offset).value = value
    return t


def owner_of_object():
    """Native memory owns a list, which holds the block."""
    inner = [holder(96, 24, address("object"))]
    increment(inner)
    return holder(96, 40, id(inner))


owner = owner_of_object()
shared = address("shared")
first, second = holder(96, 24, shared), holder(24, 16, shared)
sorted(range(1000), key=lambda n: -n)
print("ready", flush=True)
sys.stdin.readline()
