# Blocks that something else than their variable holds by a part of what is between: garbage, an object whose count is too high,
# and another variable. Prints a line for each block: address in hexadecimal, a tab, and a label.
# Then "ready", and waits.
import ctypes
import functools
import gc
import sys

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
increment = ctypes.pythonapi.Py_IncRef
increment.argtypes = [ctypes.py_object]
number = [0]


class T(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_uint64), ("pad", ctypes.c_uint64)]


class Optimizer:
    pass


def address(label):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x\t%s" % (at, label))
    return at


def tensor(label):
    t = T()
    t.impl = libc.calloc(1, 96)
    ctypes.c_uint64.from_address(t.impl + 24).value = address(label)
    return t


def owner_of_object():
    """Native memory owns a list, which holds the block."""
    inner = [tensor("owner")]
    increment(inner)
    t = T()
    t.impl = libc.calloc(1, 96)
    ctypes.c_uint64.from_address(t.impl + 40).value = id(inner)
    return t


def optimizer_of(label):
    made = Optimizer()
    parameter = tensor(label)
    made.state = {parameter.impl: parameter}
    made.groups = [{"parameters": [parameter]}]
    return made


def forget(made):
    """Garbage refers to a part of it."""
    cycle = Optimizer()
    cycle.itself, cycle.groups = cycle, made.groups


def count_twice(made):
    """A list that nothing refers to has a count, and refers to a part of it."""
    increment([made.groups])


gc.disable()
# It is called from C, so that what its frame leaves on the thread's stack is overwritten below.
owner = functools.partial(owner_of_object)()
alone = optimizer_of("alone")
in_garbage, counted, elsewhere = optimizer_of("in_garbage"), optimizer_of("counted"), optimizer_of("elsewhere")
forget(in_garbage)
count_twice(counted)
sys.kept_groups = [{"inner": [[elsewhere.groups]]}]
# Nothing holds it, so everything is searched.
address("lost")
sorted(range(1000), key=lambda n: -n)
print("ready", flush=True)
sys.stdin.readline()
