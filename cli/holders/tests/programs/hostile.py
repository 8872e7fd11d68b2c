# Heaps that are hard to search: deep, wide, cyclic, and damaged. Prints blocks as stand_ins.py does.
import ctypes
import gc
import sys

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]


class T(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_uint64), ("pad", ctypes.c_uint64)]


class Node:
    __slots__ = ("next", "tensor")


number = [0]


def block(label, expected):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x 4096 %s %s" % (at, label, expected))
    t = T()
    t.impl = libc.calloc(1, 96)
    ctypes.c_uint64.from_address(t.impl + 24).value = at
    return t


def large_cycle():
    first = node = Node()
    for _ in range(100000):
        node.next = Node()
        node = node.next
    node.next = first
    node.tensor = block("large-cycle", "Cycle")


def damage(object, offset, value):
    ctypes.c_uint64.from_address(id(object) + offset).value = value


gc.disable()
deep = block("deep", "Held")
for _ in range(100000):
    deep = [deep]
wide = [None] * 1000000
wide[777777] = block("wide", "Held")
wide.append(wide)
keyed = {n: n for n in range(100000)}
keyed[-1] = block("keyed", "Held")
large_cycle()
# The copies of these lists say that they have other sizes and types; what they lead to has other holders, too.
sane = [block("beside-damage", "Held") for _ in range(10)]
wrong_size, wrong_items, wrong_type = [[sane[0]], [sane[1]], [sane[2]]]
damage(wrong_size, 16, 1 << 44)
damage(wrong_items, 24, 0x123456789000)
damage(wrong_type, 8, id(sane))
damaged = [id(wrong_size), id(wrong_items), id(wrong_type)]
# Lists that share one array: their elements are read once.
array = [block("in-shared-array", "Held")] + [deep] * 300000
items = ctypes.c_uint64.from_address(id(array) + 24).value
sharing = [[None] for _ in range(20000)]
for one in sharing:
    damage(one, 16, len(array))
    damage(one, 24, items)
sharing.append([block("behind-shared-arrays", "Held")])
print("ready", flush=True)
sys.stdin.readline()
