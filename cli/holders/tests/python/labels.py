"""Prints what references of known objects, and known objects, are called: `label HOLDER TARGET TEXT`, `name OBJECT TEXT`,
`frame THREAD TEXT`, `root TARGET KIND`. Then it waits."""

import asyncio, atexit, collections, contextvars, functools, os, sys, threading, types, weakref

lines = []
keep = []


def label(holder, target, text, shape=None):
    keep.append((holder, target))
    lines.append("label %d %d %s\t%s" % (id(holder), id(target), text, shape or text))


def name(one, text):
    keep.append(one)
    lines.append("name %d %s" % (id(one), text))


class Target:
    pass


class Cache:
    store = [Target()]

    def __init__(self):
        self.first, self.second = Target(), Target()


class Slots:
    __slots__ = ("slot",)

    def __init__(self):
        self.slot = Target()


class SlotDict(dict):
    __slots__ = ("slot",)


class Error(ValueError):
    pass


listed = [Target(), Target()]
label(listed, listed[1], "[1]", "[*]")
name(listed, "list of 2")
several = (Target(), Target(), Target())
label(several, several[2], "[2]", "[*]")
name(several, "tuple of 3")
deque = collections.deque([Target() for _ in range(300)])
deque.rotate(77)
label(deque, deque[200], "[200]", "[*]")
name(deque, "deque of 300")
keys = {"text": Target(), 7: Target(), -(1 << 40): Target(), "q'\\\n": Target(), (1,): Target(), None: Target()}
for key, text in (("text", "['text']"), (7, "[7]"), (-(1 << 40), "[-1099511627776]"), ("q'\\\n", "['q\\'\\\\\\n']")):
    label(keys, keys[key], text, "[*]")
label(keys, keys[(1,)], "[<tuple>]", "[*]")
label(keys, keys[None], "[None]", "[*]")
name(keys, "dict of 6")
wide = {"\u4e2d": Target(), "\U0001f40d": Target(), "\u00e9": Target(), "x" * 100: Target()}
for key in wide:
    label(wide, wide[key], "['%s']" % (key if len(key) == 1 else "x" * 80 + "\u2026"), "[*]")
by_object = {Target(): 1}
label(by_object, next(iter(by_object)), "key")
ordered = collections.OrderedDict(a=Target())
label(ordered, ordered["a"], "['a']", "[*]")
name(ordered, "OrderedDict of 1")
name(collections.defaultdict(list, a=1), "defaultdict of 1")
members = {Target()}
label(members, next(iter(members)), "element")
name(members, "set of 1")

cache = Cache()
if sys.version_info >= (3, 11):
    label(cache, cache.second, ".second")
else:
    label(vars(cache), cache.second, "['second']", "[*]")
name(cache, "Cache")
many = Target()
for number in range(200):
    setattr(many, "attribute%d" % number, Target())
label(vars(many), many.attribute150, "['attribute150']", "[*]")
label(many, vars(many), ".__dict__")
label(Cache.__dict__["__init__"], Cache.__init__.__globals__, ".__globals__")
name(Cache, "class Cache")
slots = Slots()
label(slots, slots.slot, ".slot")
slot_dict = SlotDict(a=Target())
slot_dict.slot = Target()
label(slot_dict, slot_dict.slot, ".slot")
label(slot_dict, slot_dict["a"], "['a']", "[*]")
name(types.ModuleType("made\x1bup"), "module made\\u{1b}up")


def enclosing():
    captured = Target()

    def inner(a=Target(), *, b=Target()):
        return captured

    return inner


inner = enclosing()
label(inner, inner.__closure__, ".__closure__")
label(inner.__closure__[0], inner(), ".cell_contents")
label(inner, inner.__defaults__, ".__defaults__")
label(inner, inner.__kwdefaults__, ".__kwdefaults__")
name(inner, "function inner")
name(cache.__init__, "method __init__")
bound = Cache.__init__.__get__(cache)
label(bound, cache, ".__self__")
partial = functools.partial(inner, Target())
label(partial, partial.args, ".args")
label(partial, inner, ".func")
cached = functools.lru_cache(5)(lambda number: Target())
made = cached(1)
static = staticmethod(inner)
prop = property(inner)
label(prop, inner, ".fget")
weak = weakref.ref(cache, inner)
label(weak, inner, ".__callback__")


def generator(argument):
    local = Target()
    cell = Target()
    lines.append("local %d local" % id(local))
    suspended.append((local, cell, lambda: cell))
    yield local, lambda: cell


suspended = []
running = generator(Target())
next(running)
here = "labels.py:%d"
name(running, "generator generator, " + here % (generator.__code__.co_firstlineno + 5))
if sys.version_info >= (3, 11):
    label(running, suspended[0][0], "local local")
    label(running, suspended[0][2].__closure__[0], "local cell")
else:
    label(running.gi_frame, suspended[0][0], "local local")
    label(running.gi_frame, suspended[0][2].__closure__[0], "local cell")
    name(running.gi_frame, "frame of generator, " + here % (generator.__code__.co_firstlineno + 5))
    label(running, running.gi_frame, ".gi_frame")


async def coroutine(argument):
    local = argument
    await asyncio.sleep(100)


waiting = coroutine(keep)
name(waiting, "coroutine coroutine, " + here % coroutine.__code__.co_firstlineno)


def fails():
    local = Target()
    suspended.append(local)
    raise Error(local)


try:
    fails()
except Error as error:
    saved = error
label(saved, saved.__traceback__, ".__traceback__")
label(saved, saved.args, ".args")
label(saved.__traceback__.tb_next, saved.__traceback__.tb_next.tb_frame, ".tb_frame")
label(saved.__traceback__.tb_next.tb_frame, suspended[-1], "local local")
name(saved.__traceback__.tb_next.tb_frame, "frame of fails, " + here % (fails.__code__.co_firstlineno + 3))
name(saved, "Error")

started, stop = threading.Event(), threading.Event()


def work(argument):
    local = Target()
    suspended.append(local)
    try:
        raise Error(local)
    except Error as error:
        lines.append("root %d exception" % id(error))
        started.set(); stop.wait()


thread = threading.Thread(target=work, args=(keep,), daemon=True)
thread.start()
started.wait()
lines.append("frame %d frame of work, " % (thread.native_id if hasattr(thread, "native_id") else 0) + here % (work.__code__.co_firstlineno + 7))


def at_end(target=Target()):
    pass


atexit.register(at_end)
lines.append("root %d atexit" % id(at_end))
variable = contextvars.ContextVar("variable")
variable.set(Target())


def main():
    local = Target()
    lines.append("frame %d frame of main, " % threading.get_native_id() + here % (main.__code__.co_firstlineno + 5))
    lines.append("variable %d local" % id(local))
    print(len(lines), flush=True)
    sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode()); sys.stdout.flush(); sys.stdin.readline()


main()
os._exit(0)
