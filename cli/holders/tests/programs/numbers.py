# Addresses that are kept as values. Prints its blocks (address, bytes, label, expected class), then "ready", and waits.
import array
import collections
import ctypes
import itertools
import mmap
import struct
import sys

number = [0]


def block(label, expected="Held"):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x 4096 %s %s" % (at, label, expected), flush=True)
    return at


class Address(int):
    pass


class Packed(bytes):
    pass


def fill():
    global integer, real, own_integer, packed, unaligned, long_bytes, own_bytes, changeable, view, values, span
    global buffer, structure, mapping, counter, pair, shared
    integer = {"k": block("int")}
    real = [float(block("float"))]
    own_integer = Address(block("own-int"))
    packed = struct.pack("QQ", 7, block("bytes"))
    unaligned = struct.pack("<IQ", 7, block("unaligned"))
    long_bytes = bytes(8000) + struct.pack("Q", block("long-bytes"))
    own_bytes = Packed(struct.pack("Q", block("own-bytes")))
    changeable = bytearray(struct.pack("QQ", block("bytearray"), 0))
    view = memoryview(struct.pack("Q", block("memoryview")))
    values = array.array("Q", [1, block("array")])
    span = range(block("range"), 1 << 60)
    buffer = ctypes.create_string_buffer(struct.pack("Q", block("ctypes-buffer")), 64)
    structure = (ctypes.c_uint64 * 3)(1, 2, block("ctypes-array"))
    counter = itertools.count(block("count"), 1 << 40)
    pair = collections.namedtuple("Pair", "a")(struct.pack("Q", block("namedtuple")))
    mapping = mmap.mmap(-1, 8192)
    mapping[4096:4104] = struct.pack("Q", block("mmap"))
    shared = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared[8:16] = struct.pack("Q", block("private-mmap"))
    block("forgotten", "Lost")


fill()


class Holder:
    pass


def named():
    global strange
    strange = Holder()
    setattr(strange, "a b", ctypes.create_string_buffer(struct.pack("Q", block("strange-name")), 64))


named()
stacked = block("stacked")
print("ready", flush=True)
# While it waits, the number is on the value stack, too.
[stacked, sys.stdin.readline()]
