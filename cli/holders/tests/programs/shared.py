# Blocks that several variables hold, and words that equal the address of an object which they do not hold. Prints a line for
# each block: address in hexadecimal, a tab, and a label. Then "ready", and waits.
import ctypes
import sys

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
number = [0]


class T(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_uint64), ("pad", ctypes.c_uint64)]


class Settings:
    pass


def tensor(label):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x\t%s" % (at, label))
    t = T()
    t.impl = libc.calloc(1, 96)
    ctypes.c_uint64.from_address(t.impl + 24).value = at
    return t


# One list, two variables.
keep = [tensor("list") for _ in range(3)]
other = keep
# Two lists with the same elements.
left = [tensor("elements") for _ in range(4)]
right = list(left)
# Two attributes of one object.
settings = Settings()
settings.a = [tensor("attributes")]
settings.b = settings.a
# Both references are in one container.
pair = [tensor("pair")] * 2
# Stale: words of native memory and of an object of a C extension.
alone = [tensor("alone")]
note = ctypes.c_uint64(id(alone))
buffer = T()
buffer.impl = libc.calloc(1, 96)
ctypes.c_uint64.from_address(buffer.impl + 16).value = id(alone)
# More holders than are named.
crowd = tensor("crowd")
others = [[crowd] for _ in range(50)]
# Native memory that objects in two lists lead to.
first = [tensor("native")]
second = [T()]
second[0].impl = first[0].impl
print("ready", flush=True)
sys.stdin.readline()
