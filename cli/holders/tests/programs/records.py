# Memory whose finalizers and tables lead to it besides its users. Prints blocks as stand_ins.py does.
import ctypes
import gc
import sys
import weakref

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
number = [0]


class Holder:
    pass


class Memory:
    """Memory of a manager, which has a table of it. Its finalizer takes it out."""

    def __init__(self, manager, pointer):
        self.pointer = pointer
        self._finalizer = weakref.finalize(self, manager.pop, pointer.value)


class Owner:
    """What a user has of it."""

    def __init__(self, memory):
        proxy = weakref.proxy(memory)
        self.memory = proxy
        self.pointer = ctypes.c_uint64(memory.pointer.value)
        weakref.finalize(self, lambda: proxy._finalizer())


def block(label, expected):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x 4096 %s %s" % (at, label, expected), flush=True)
    return ctypes.c_uint64(at)


def allocate(label, expected):
    pointer = block(label, expected)
    memory = Memory(allocations, pointer)
    allocations[pointer.value] = memory
    return Owner(memory)


class SingleDeviceMemoryPool:
    def __init__(self):
        self.used, self.free = {}, [set()]

    def allocate(self, label, expected):
        pointer = block(label, expected)
        chunk = Holder()
        chunk.pointer = pointer
        self.used[pointer.value] = chunk
        return ctypes.c_uint64(pointer.value)


def circle(**more):
    made = Holder()
    made.own = made
    vars(made).update(more)
    return made


def freed(*arguments):
    pass


allocations = {}
by_address = {}
by_object = weakref.WeakKeyDictionary()
gc.disable()

kept = [allocate("owned", "Held")]
circle(memory=allocate("owned-in-circle", "Cycle"))
allocate_only = allocate("table-only", "Held")
# The finalizer of the owner never ran, so the table has it still.
allocate_only.pointer = None

pool = SingleDeviceMemoryPool()
array = Holder()
array.pointer = pool.allocate("pooled", "Held")
circle(pointer=pool.allocate("pooled-in-circle", "Cycle"))
pool.allocate("pool-only", "Held")
leaked = Holder()
leaked.pointer = pool.allocate("pooled-over-counted", "OverCounted")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(leaked))
del leaked
chunk = Holder()
chunk.pointer = block("pool-free", "Held")
pool.free[0].add(chunk)
del chunk

# An object that is alive, and one that is not.
watched = Holder()
weakref.finalize(watched, freed, block("finalizer", "Held"))
weakref.finalize(circle(), freed, block("finalizer-of-circle", "Cycle"))

key = Holder()
by_object[key] = block("weak-key", "Held")
by_object[circle()] = block("weak-key-of-circle", "Cycle")
# The value keeps its key alive.
value = Holder()
value.key = Holder()
value.pointer = block("weak-key-of-itself", "Held")
by_object[value.key] = value
del value

# A table of the program: without a finalizer, it holds what is in it.
held = Holder()
held.own = held
held.pointer = block("by-address", "Held")
by_address[held.pointer.value] = held
del held
sorted(range(1000), key=lambda n: -n)
print("ready", flush=True)
sys.stdin.readline()
