# Stand-ins of tensors: ctypes object -> malloc'd struct -> malloc'd struct -> device address.
# Prints a line for each block: address in hexadecimal, bytes, label, expected class. Then "ready", and waits.
import ctypes
import datetime
import gc
import sys
import threading
import time

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
increment = ctypes.pythonapi.Py_IncRef
increment.argtypes = [ctypes.py_object]
number = [0]


class T(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_uint64), ("pad", ctypes.c_uint64)]


class Holder:
    pass


def address(label, expected):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x 4096 %s %s" % (at, label, expected), flush=True)
    return at


def write(at, value):
    ctypes.c_uint64.from_address(at).value = value


def block(label, expected):
    storage = libc.calloc(1, 64)
    impl = libc.calloc(1, 96)
    write(storage + 24, address(label, expected))
    write(impl + 24, storage)
    t = T()
    t.impl = impl
    return t


def held():
    global keep, cache, closure, default
    keep = [block("list", "Held") for _ in range(3)]
    cache = Holder()
    cache.store = {"a": (1, block("attribute", "Held"))}
    inside = block("closure", "Held")
    closure = lambda: inside

    def default(t=block("default", "Held")):
        return t

    Holder.attribute = block("class-attribute", "Held")


def numbers():
    global pointer
    pointer = {"pointer": address("number", "Held")}


def cycles():
    gc.disable()
    for place in range(20):
        a, b = Holder(), Holder()
        a.other, b.other = b, a
        a.tensor = block("cycle%d" % place, "Cycle")
    own = [block("own-list", "Cycle")]
    own.append(own)


def over_counted():
    holder = Holder()
    holder.tensor = block("over-counted", "OverCounted")
    increment(holder)
    increment(block("over-counted-itself", "OverCounted"))


def native(library):
    library.hold_object.argtypes = [ctypes.py_object]
    library.hold_block.argtypes = [ctypes.c_uint64]
    library.hold_in_chunk.argtypes = [ctypes.c_uint64]
    library.hold_in_thread.argtypes = [ctypes.c_uint64]
    library.leak_in_chunk.argtypes = [ctypes.c_uint64]
    holder = Holder()
    holder.tensor = block("global-object", "NativeHolder")
    library.hold_object(holder)
    library.hold_block(address("global", "Held"))
    library.hold_in_chunk(address("global-chunk", "Held"))
    library.hold_in_thread(address("thread-local", "Held"))
    library.leak_in_chunk(address("leaked-chunk", "Lost"))


class Zone(datetime.tzinfo):
    pass


def untracked(library):
    """Behind a `datetime`, which the collector does not track: what native code has a pointer to, and what nothing leads to."""
    holder = Holder()
    zone = Zone()
    zone.tensor = block("behind-untracked", "NativeHolder")
    holder.when = datetime.datetime(2000, 1, 1, tzinfo=zone)
    library.hold_object(holder)
    zone = Zone()
    zone.tensor = block("owned-by-untracked", "NativeHolder")
    when = datetime.datetime(2000, 1, 1, tzinfo=zone)
    increment(when)
    library.leak_in_chunk(id(when))


def lost():
    t = block("lost", "Lost")
    storage = ctypes.c_uint64.from_address(t.impl + 24).value
    write(storage + 24, 0)
    libc.free(storage)


def frame():
    local = block("thread-frame", "Held")
    event.wait()


event = threading.Event()
held()
numbers()
cycles()
over_counted()
lost()
if len(sys.argv) > 1:
    library = ctypes.CDLL(sys.argv[1])
    native(library)
    untracked(library)
threading.Thread(target=frame, daemon=True).start()
time.sleep(0.1)
# Overwrites what the calls above left on the stack.
sorted(range(1000), key=lambda n: -n)
print("ready", flush=True)
sys.stdin.readline()
