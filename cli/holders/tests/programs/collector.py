# Objects that refer to each other, as the collector sees them. Prints blocks as stand_ins.py does.
import ctypes
import datetime
import gc
import sys

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
number = [0]


class T(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_uint64), ("pad", ctypes.c_uint64)]


class Zone(datetime.tzinfo):
    pass


class Holder:
    pass


def block(label, expected):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x 4096 %s %s" % (at, label, expected), flush=True)
    t = T()
    t.impl = libc.calloc(1, 96)
    ctypes.c_uint64.from_address(t.impl + 24).value = at
    return t


def untracked_in_a_circle():
    # The collector does not know what a datetime refers to, so it never frees these.
    zone = Zone()
    zone.time = datetime.datetime(2020, 1, 1, tzinfo=zone)
    zone.tensor = block("untracked-in-circle", "NativeHolder")


def untracked_behind_a_circle():
    # The collector frees the circle, which frees the rest.
    circle = Holder()
    circle.own = circle
    zone = Zone()
    zone.tensor = block("untracked-behind-circle", "Cycle")
    circle.time = datetime.datetime(2020, 1, 1, tzinfo=zone)


def frozen():
    circle = Holder()
    circle.own = circle
    circle.tensor = block("frozen", "Cycle")


def ordinary():
    circle = Holder()
    circle.own = circle
    circle.tensor = block("ordinary", "Cycle")


def borrowed(library):
    """A global variable owns the object; the word in it that equals its address is no counted reference."""
    library.hold_object.argtypes = [ctypes.py_object]
    owned = Holder()
    owned.tensor = block("borrowed", "Cycle")
    owned.word = T()
    owned.word.impl = id(owned)
    library.hold_object(owned)


gc.disable()
frozen()
gc.freeze()
untracked_in_a_circle()
untracked_behind_a_circle()
ordinary()
borrowed(ctypes.CDLL(sys.argv[1]))
sorted(range(1000), key=lambda n: -n)
print("ready", flush=True)
sys.stdin.readline()
