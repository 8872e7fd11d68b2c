# Objects that only raw memory of Python's allocator has pointers to: the table in which a Pickler keeps what it has written, which is
# small or large, and memory that nothing points to. Prints a line for each block: address in hexadecimal, bytes, the global that holds
# it, and the class. Then "ready", and waits.
import ctypes
import io
import pickle
import sys

increment = ctypes.pythonapi.Py_IncRef
increment.argtypes = [ctypes.py_object]
raw = ctypes.pythonapi.PyMem_Malloc
raw.restype = ctypes.c_void_p
raw.argtypes = [ctypes.c_size_t]
ctypes.CDLL(sys.argv[1])
number = [0]


class Tensor:
    def __init__(self, address):
        self.pointer = ctypes.c_void_p(address)

    def __reduce__(self):
        return Tensor, (0,)


class Exporter:
    def __init__(self):
        self.pickler = pickle.Pickler(io.BytesIO())

    def write(self, tensor):
        self.pickler.dump(tensor)


def tensor(label, expected):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x 4096 %s %s" % (at, label, expected))
    return Tensor(at)


def unowned():
    kept = tensor("raw", "OverCounted")
    increment(kept)
    ctypes.c_uint64.from_address(raw(64) + 24).value = id(kept)


def overwrite(deep):
    """What the calls above left on the stacks."""
    a = b = c = d = e = f = deep
    return overwrite(a - 1) if deep else 0


small, large = Exporter(), Exporter()
for step in range(3):
    small.write(tensor("small", "Held"))
for step in range(40):
    large.write(tensor("large", "Held"))
unowned()
overwrite(50)
print("ready", flush=True)
sys.stdin.readline()
