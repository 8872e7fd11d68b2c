# Arrays that own one block each. The memory of some of them contains words of earlier owners, which equal the addresses of other
# blocks. Argument: the library. Prints a line for each block: address in hexadecimal, bytes, a label, and the class. The label is
# the global that retains the block, or `unknown` if nothing shows what frees it. Then "ready", and waits.
import ctypes
import sys

library = ctypes.CDLL(sys.argv[1])
increment = ctypes.pythonapi.Py_IncRef
increment.argtypes = [ctypes.py_object]
number = 0


class Handle(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_void_p), ("pad", ctypes.c_void_p)]


class ArrayImpl(Handle):
    pass


def block(label, of="Held"):
    global number
    number += 1
    at = 0x7F0000000000 + number * 0x1000000
    print("%x %d %s %s" % (at, 4096 * number, label, of))
    return at


def native(name, *arguments, of=Handle):
    make = library[name]
    make.restype = ctypes.c_void_p
    return of(make(*arguments))


def array(block):
    return native("array", ctypes.c_void_p(block), of=ArrayImpl)


def stale(name, array, block, *arguments):
    library[name](ctypes.c_void_p(array.impl), ctypes.c_void_p(block), *arguments)


def several(name, blocks):
    return native(name, (ctypes.c_void_p * len(blocks))(*blocks), len(blocks))


# Words of the library itself equal addresses of blocks, one within a block. They are nearer to a variable than those of any array.
in_list, of_objects = block("a_list"), block("objects")
client = native("client", ctypes.c_void_p(in_list), ctypes.c_void_p(of_objects + 512))
a_list = [array(in_list)]
arrays = [array(block("arrays")) for _ in range(8)]
# At the place where the memory of an array has its own block, and at another one.
donated = array(block("donated"))
stale("stale_in_event", donated, block("unknown"), 2)
shifted = array(block("shifted"))
stale("stale_in_event", shifted, block("unknown"), 4)
wrapped = array(block("wrapped"))
stale("stale_in_wrapper", wrapped, block("unknown"))
tail = array(block("tail"))
stale("stale_behind_memory", tail, block("unknown"))
buffered = array(block("buffered"))
stale("stale_in_buffer", buffered, block("unknown"))
# Most arrays have a second pointer to their memory in a vector of another object.
interned = [array(block("interned")) for _ in range(16)]
entries = [native("entry") for _ in interned]
for nth, entry in enumerate(entries):
    library.stale_in_entry(ctypes.c_void_p(interned[nth].impl), ctypes.c_void_p(entry.impl))
del entry


def array_of_objects(block):
    inner = array(block)
    increment(inner)
    return native("vector_of_one", ctypes.c_void_p(id(inner)))


# The block of an array to which only native memory has a pointer.
vmapped = array(block("vmapped"))
stale("stale_in_event", vmapped, of_objects, 2)
objects = array_of_objects(of_objects)
# One of each class has more blocks than the others.
caches = [several("cache", [block("caches")]) for _ in range(6)]
cache = several("cache", [block("cache") for _ in range(2)])
stale("stale_behind", cache, block("unknown"))
tables = [several("table", [block("tables")]) for _ in range(6)]
table = several("table", [block("table") for _ in range(3)])
layers = [several("layer", [block("layers")]) for _ in range(6)]
layer = several("layer", [block("layer"), block("layer")])
sorted(range(1000), key=lambda n: -n)
print("ready", flush=True)
sys.stdin.readline()
