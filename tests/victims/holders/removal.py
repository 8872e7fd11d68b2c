"""Random objects that hold blocks, made from the seed in the first argument. Prints READY and the process id, then answers questions, one
JSON list a line, with the number and the bytes of the blocks that were freed.

    ["collect"]         gc.collect()
    ["drop", name …]    removes the references that these names of `culeak why` end with; null if a name is not understood
    ["quit"]
"""

import ast
import collections
import contextvars
import ctypes
import functools
import gc
import json
import os
import random
import re
import sys
import threading
import traceback
import types
import weakref

gc.disable()
driver = ctypes.CDLL("libcuda.so.1")
culeak = ctypes.PyDLL(None)
driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]
culeak.culeak_alloc.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64]
culeak.culeak_free.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
# The number and the bytes of all live blocks, and what of an allocator's addresses is used.
live, used = [0, 0], [1 << 12]


class Block:
    """Memory that is freed with the object: of the driver, or of an allocator that uses the client API."""

    def __init__(self, size, is_reported):
        self.pointer, self.size, self.is_reported = ctypes.c_uint64(), size, is_reported
        if is_reported:
            self.pointer.value = (0x7E << 40) + used[0]
            used[0] += size + 255 & ~255
            culeak.culeak_alloc(b"arena", self.pointer, size, 0)
        else:
            assert driver.cuMemAlloc_v2(ctypes.byref(self.pointer), ctypes.c_size_t(size)) == 0
        live[:] = live[0] + 1, live[1] + size

    def __del__(self):
        if self.is_reported:
            culeak.culeak_free(b"arena", self.pointer)
        else:
            driver.cuMemFree_v2(self.pointer)
        live[:] = live[0] - 1, live[1] - self.size


# ---- ways to hold objects: all of them, the first one apart from the rest ----


class Object:
    def __init__(self, held=(None,)):
        self.first, self.rest = held[0], held[1:]


class Slots:
    __slots__ = ("first", "rest")
    __init__ = Object.__init__


class View:
    def __init__(self, base):
        self._base = base


def in_views(held):
    made = held[0]
    for _ in range(3):
        made = View(made)
    return [made, *held[1:]]


def in_closure(held):
    def function():
        return held

    return function


def in_defaults(held):
    def function(first=held[0], *, rest=held[1:]):
        return first, rest

    return function


def in_class(held):
    return type("Made", (), {"first": held[0], "rest": held[1:]})


def in_cache(held):
    left = [*held]
    cached = functools.lru_cache(maxsize=None)(lambda _: left.pop())
    for nth in range(len(held)):
        cached(nth)
    return cached


def in_generator(held):
    def generate(first, rest):
        yield first
        yield rest

    made = generate(held[0], held[1:])
    next(made)
    return made


def in_exception(held):
    def fail(held):
        raise ValueError(len(held))

    try:
        fail(held)
    except ValueError as error:
        # The frames that called this one are part of the traceback.
        held = None
        return error.with_traceback(error.__traceback__.tb_next)


def in_weak_keys(held):
    """The value lives as long as the key."""
    made = Object([Object(), weakref.WeakKeyDictionary()])
    made.rest[0][made.first] = held
    return made


WAYS = [
    list,
    lambda held: {"a": {nth: one for nth, one in enumerate(held)}},
    tuple,
    collections.deque,
    lambda held: functools.partial(print, held[0], rest=held[1:]),
    lambda held: types.SimpleNamespace(first=held[0], rest=held[1:]),
    Object,
    Slots,
    in_views,
    in_closure,
    in_defaults,
    in_class,
    in_cache,
    in_generator,
    in_exception,
    in_weak_keys,
]


# ---- roots ----


class Root:
    pass


thread_local = threading.local()
variable = contextvars.ContextVar("variable")
other_module = sys.modules["other_module"] = types.ModuleType("other_module")
finish = threading.Event()


def in_thread(name, held):
    ready = threading.Event()

    def run(box):
        in_frame = box.pop()
        ready.set()
        finish.wait()
        return in_frame

    threading.Thread(target=run, args=([held],), daemon=True, name=name).start()
    ready.wait()


def in_cycle(name, held):
    made = Object([held])
    made.rest = made


ROOTS = [
    lambda name, held: globals().__setitem__(name, held),
    lambda name, held: setattr(Root, name, held),
    lambda name, held: setattr(thread_local, name, held),
    lambda name, held: setattr(other_module, name, held),
    lambda name, held: variable.set((held, variable.get(None))),
    in_thread,
    in_cycle,
]


def build(seed):
    """Each object holds some before it; roots hold what nothing else does, and a few more."""
    chosen = random.Random(seed)

    def block():
        return Block(chosen.randrange(1, 1 << 16), chosen.randrange(2))

    made, open = [block() for _ in range(6)], set(range(6))
    for way in chosen.sample(WAYS, 13):
        places = chosen.sample(range(len(made)), chosen.choice([1, 1, 2, 3]))
        made.append(way([block(), *(made[place] for place in places)]))
        open.add(len(made) - 1)
        open.difference_update(places)
    for place in {*open, *chosen.sample(range(len(made)), 3)}:
        for root in chosen.sample(ROOTS[:1] * 3 + ROOTS[1:], chosen.choice([1, 1, 2])):
            root("r%d" % place, made[place])
    made.clear()


# ---- questions ----

NAME = re.compile(r"(?:(\d+) × )?(.*?)(?: \([^()]*\))?")
BEGIN = re.compile(r"(?P<module>__main__|other_module)|context variable variable|thread \d+ \((?P<thread>\w+)\), frame of run, removal.py:\d+")
STEP = re.compile(
    r"\.(?P<attribute>\w+)|\[(?P<key>[^]]*)\]|, local (?P<local>\w+)|,? closure (?P<closure>\w+)"
    r"| → (?P<label>(?:frame of (?:generator )?\w+, [\w.]+:\d+|function \w+|class \w+|lru_cache of <lambda>|\w+))"
)
NOTHING = {"__defaults__": None, "__kwdefaults__": None, "__traceback__": None}


def references(one, step):
    """Each object that a step of a path leads to, and how to remove the reference."""
    kind, text = step.lastgroup, step[step.lastgroup]
    if kind == "attribute":
        return attribute(one, text)
    if kind == "key":
        return [(one[key], functools.partial(set_item, one, key)) for key in keys(one, text)]
    if kind == "local":
        return [local(getattr(one, "gi_frame", one), text)]
    if kind == "closure":
        cell = one.__closure__[one.__code__.co_freevars.index(text)]
        return [(cell.cell_contents, functools.partial(delattr, cell, "cell_contents"))]
    frame = getattr(one, "gi_frame", getattr(one, "tb_frame", None))
    return [(frame if text.startswith("frame of") else one, None)]


def attribute(one, name):
    if isinstance(one, functools.partial):
        parts = (print, *((of, type(of)())[name == part] for part, of in (("args", one.args), ("keywords", one.keywords))), None)
        return [(getattr(one, name), lambda: one.__setstate__(parts))]
    if name == "cache":
        found = [of for of in gc.get_referents(one) if type(of) is dict and "__wrapped__" not in of]
        return [(found[0], one.cache_clear)]
    remove = functools.partial(setattr, one, name, None) if name in NOTHING else functools.partial(delattr, one, name)
    return [(getattr(one, name), remove)]


def keys(one, text):
    of = list(one) if hasattr(one, "keys") else list(range(len(one)))
    if text == "*":
        return of
    if text.startswith("<"):
        assert len(of) == 1
        return of
    return [ast.literal_eval(text)]


def set_item(one, key):
    if type(one) is not tuple:
        one[key] = None
        return
    # Tuples do not change otherwise.
    place = ctypes.c_void_p.from_address(id(one) + tuple.__basicsize__ + key * ctypes.sizeof(ctypes.c_void_p))
    old, place.value = place.value, id(None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
    ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(old))


def local(frame, name):
    """Up to CPython 3.12, `f_locals` is a dictionary, which the frame keeps and writes when it is asked for."""

    def remove():
        of = frame.f_locals
        of[name] = None
        if type(of) is dict:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)
            of.clear()

    of = frame.f_locals
    value = of[name]
    if type(of) is dict:
        of.clear()
    return value, remove


def begin_of(begin):
    if begin["module"]:
        return sys.modules[begin["module"]], None
    if begin["thread"] is None:
        return variable.get(), lambda: variable.set(None)
    thread = next(thread for thread in threading.enumerate() if thread.name == begin["thread"])
    frame = sys._current_frames()[thread.ident]
    while frame.f_code.co_name != "run" or frame.f_code.co_filename != __file__:
        frame = frame.f_back
    return frame, None


def removals(name):
    """How to remove each reference with this name of `culeak why`. None: `*` means only some of these."""
    count, name = NAME.fullmatch(name).groups()
    begin = BEGIN.match(name)
    found, end = [begin_of(begin)], begin.end()
    while end < len(name):
        step = STEP.match(name, end)
        end, before, found = step.end(), found, []
        for one, remove in before:
            try:
                found += [(target, next or remove) for target, next in references(one, step)]
            except (AttributeError, KeyError, IndexError):
                if not count:
                    raise
    found = [remove for target, remove in found if target is not None]
    return found if not count or len(found) == int(count) else None


def remove(names):
    # One name may lead through another one, so all are looked up first.
    found = [removals(name) for name in names]
    if None in found:
        return False
    for one in sum(found, []):
        one()
    return True


def answer(action, *names):
    before = [*live]
    try:
        if not remove(names):
            return None
    except Exception:
        return traceback.format_exc()
    gc.collect()
    return [before[0] - live[0], before[1] - live[1]]


def clear_frames(depth):
    """Overwrites what earlier calls left in the memory of frames."""
    a = b = c = d = e = f = g = h = None
    return clear_frames(depth - 1) if depth else (a, b, c, d, e, f, g, h)


def main():
    assert driver.cuInit(0) == 0
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    build(int(sys.argv[1]))
    clear_frames(30)
    print("READY", os.getpid(), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if question == ["quit"]:
            # Without the interpreter's shutdown.
            os._exit(0)
        print(json.dumps(answer(*question)), flush=True)


main()
