"""Heaps that are hard to search; the first argument selects one. Prints the addresses of the blocks that it holds, and their
class, as JSON; then waits for a line."""

import contextvars
import ctypes
import gc
import json
import os
import sys
import threading

from standin import allocate, begin, driver, libc, live, tensor

gc.disable()
begin()
held = []
# Threads that are started when the addresses have been printed.
later = []
# The words that the head of an object has in free-threaded builds besides those of a build with the GIL.
MORE = object.__basicsize__ // ctypes.sizeof(ctypes.c_void_p) - 2


class Link:
    __slots__ = ("next", "held", "number")


def long_cycle(length=1_000_000):
    """Objects in one circle, the last of which holds a block."""
    first = last = Link()
    for _ in range(length):
        link = Link()
        last.next, last = link, link
    last.next = first
    last.held = tensor()
    return "cycle"


def long_list():
    """The last of a million elements."""
    held.append([None] * 1_000_000 + [tensor()])
    return "held"


def large_dictionaries():
    held.append({number: [number] for number in range(500_000)})
    held[0]["last"] = tensor()
    held.append({(number, str(number)) for number in range(200_000)})
    return "held"


def nested(depth=100_000):
    """Lists in lists: the path has as many steps."""
    inner = [tensor()]
    for _ in range(depth):
        inner = [inner]
    held.append(inner)
    return "held"


def everything_refers_to_everything(count=2_000):
    """Four million references among two thousand lists."""
    lists = [[] for _ in range(count)]
    for one in lists:
        one.extend(lists)
    lists[-1].append(tensor())
    held.append(lists[0])
    return "held"


class Mover:
    """Blocks that change their holder all the time: dictionaries that grow, shrink and are resized."""

    def __init__(self):
        self.places = [{} for _ in range(20)]
        for number in range(200):
            self.places[number % 20][number] = tensor()
        threading.Thread(target=self.move, daemon=True).start()

    def move(self):
        turn = 0
        while True:
            turn += 1
            one, other = self.places[turn % 20], self.places[(turn * 7 + 3) % 20]
            if one is not other and one:
                # In the new place before it leaves the old one: something holds it at every instant.
                key = next(iter(one))
                other[key] = one[key]
                del one[key]
            spare = self.places[turn % 20]
            spare.update((number + 1000, None) for number in range(turn % 100))
            for number in range(turn % 100):
                del spare[number + 1000]


def moving():
    held.append(Mover())
    return "held"


def look_alikes():
    """Memory that looks like Python objects with absurd fields. Nothing in this program may follow these pointers."""
    word = ctypes.sizeof(ctypes.c_void_p)
    types = [id(type(thing)) for thing in ([], {}, (), "", set(), 1, b"", main, Link, iter([]), (x for x in ()), ValueError())]
    huge = [0, 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1]
    fakes = []
    for number, kind in enumerate(types * len(huge)):
        memory = libc.malloc(256)
        words = (ctypes.c_uint64 * 32).from_address(memory)
        for index in range(32):
            words[index] = [huge[(number + index) % len(huge)], memory, kind, id(held), memory + 8 * index][(number + index) % 5]
        words[2], words[3 + MORE] = 5, kind
        fakes.append(memory + 2 * word)
    # Types that are their own base and metatype, with a name and members that lead nowhere.
    for size in huge:
        memory = libc.malloc(2048)
        words = (ctypes.c_uint64 * 256).from_address(memory)
        for index in range(256):
            words[index] = size
        words[0], words[1 + MORE], words[3 + MORE] = 100, memory, 0x10
        words[21 + MORE] = 1 << 31 | 1 << 12 | 1 << 9
        words[32 + MORE] = words[29 + MORE] = memory
        instance = libc.malloc(128)
        (ctypes.c_uint64 * (2 + MORE)).from_address(instance)[:] = [3, *[0] * MORE, memory]
        fakes.extend([memory, instance])
    # A list whose items are these, a dictionary with damaged keys, and a list with an absurd length.
    fake_items = [None] * len(fakes)
    items = ctypes.c_uint64.from_address(id(fake_items) + (3 + MORE) * word).value
    for index, fake in enumerate(fakes):
        ctypes.c_uint64.from_address(items + index * word).value = fake
    damaged = {number: number for number in range(100)}
    keys = ctypes.c_uint64.from_address(id(damaged) + (4 + MORE) * word).value
    ctypes.c_uint64.from_address(keys + 8).value = 2**64 - 1
    endless = [1, 2, 3]
    ctypes.c_int64.from_address(id(endless) + (2 + MORE) * word).value = 2**60
    held.extend([fake_items, damaged, endless, tensor()])
    return "held"


def shared_arrays():
    """Twenty thousand lists whose elements are one array of three hundred thousand."""
    word = ctypes.sizeof(ctypes.c_void_p)
    array = [tensor()] + [held] * 300_000
    sharing = [[None] for _ in range(20_000)]
    for one in sharing:
        words = (ctypes.c_uint64 * (4 + MORE)).from_address(id(one))
        words[2 + MORE], words[3 + MORE] = len(array), ctypes.c_uint64.from_address(id(array) + (3 + MORE) * word).value
    held.extend([array, sharing, tensor()])
    return "held"


def quiet():
    held.append(tensor())
    return "held"


def steps():
    """Fifty blocks that stay, while others come and go as in the steps of a training loop."""
    held.extend(tensor() for _ in range(50))

    def train():
        begin()
        while True:
            step = [tensor() for _ in range(20)]
            step.clear()

    later.append(train)
    return "held"


class Layer:
    """Has a block and a log."""

    def __init__(self):
        self.held = tensor()
        self.log = [b"x" * size for size in [100_000] * 50]


def host():
    """Host memory of known sizes: in objects with blocks, in others, of two variables, and pinned or registered."""
    global layers, history, table, first, second, buffers, pinned, registered, views
    layers = [Layer() for _ in range(4)]
    history = [b"x" * size for size in [10_000] * 3000]
    table = {number: [number] * 1000 for number in range(1000)}
    first = second = [b"x" * size for size in [20_000] * 1000]
    buffers = [bytearray(b"x" * (10 << 20))]
    pinned = [ctypes.c_void_p() for _ in range(3)]
    for pointer in pinned:
        assert driver.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(2 << 20), 0) == 0
    # One chunk of malloc is reached by its address only, the other is the memory of an object.
    registered = [ctypes.c_void_p(libc.malloc(4 << 20))]
    ctypes.memset(registered[0], 1, 4 << 20)
    views = [bytearray(b"x" * (2 << 20))]
    view = ctypes.addressof(ctypes.c_char.from_buffer(views[0]))
    for address, size in (registered[0].value, 4 << 20), (view, 2 << 20):
        assert driver.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(size), 0) == 0
    return "held"


def shared():
    """Two variables hold one list, and two lists have the same elements."""
    global first, second, elements
    first = second = [tensor() for _ in range(8)]
    elements = [tensor() for _ in range(4)]
    held.extend(elements)
    return "held"


def threads():
    """Objects to which only the state of a thread refers."""
    variable = contextvars.ContextVar("variable")
    ready = threading.Barrier(4)

    def wait():
        ready.wait()
        threading.Event().wait()

    def context():
        begin()
        variable.set([tensor()])
        wait()

    def handled():
        begin()
        try:
            raise ValueError(tensor())
        except ValueError:
            wait()

    def profiled():
        begin()

        class Profile:
            def __init__(self):
                self.held = tensor()

            def __call__(self, *_):
                return None

        sys.setprofile(Profile())
        wait()

    variable.set([tensor()])
    for function in (context, handled, profiled):
        threading.Thread(target=function, daemon=True).start()
    ready.wait()
    return "held"


def numbers():
    """An address in bytes, to which a variable refers, and the value stack of a running function."""
    ready = threading.Barrier(2)

    def wait(text):
        global view
        view = memoryview(text)
        del text
        ready.wait()
        threading.Event().wait()

    def call():
        begin()
        wait(allocate(1000).to_bytes(8, "little"))

    threading.Thread(target=call, daemon=True).start()
    ready.wait()
    return "held"


CASES = (long_cycle, long_list, large_dictionaries, nested, everything_refers_to_everything, moving, look_alikes, shared_arrays, quiet, steps, shared, host, threads, numbers)


def main():
    of = {case.__name__: case for case in CASES}[sys.argv[1]]()
    print(json.dumps([of, sorted(map(int, live))]), flush=True)
    print("READY", os.getpid(), flush=True)
    for function in later:
        threading.Thread(target=function, daemon=True).start()
    sys.stdin.readline()
    # The interpreter must not walk the damaged objects.
    os._exit(0)


if __name__ == "__main__":
    main()
