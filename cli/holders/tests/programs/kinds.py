# Stand-ins of tensors in holders of many kinds. Prints a line for each block: address in hexadecimal, a tab, and the path that
# a reader expects. Then "ready", and waits.
import asyncio
import collections
import contextvars
import ctypes
import dataclasses
import functools
import gc
import sys
import threading
import time
import types
import weakref

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
number = [0]


class T(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_uint64), ("pad", ctypes.c_uint64)]


def t(path, first_words=()):
    """A stand-in whose path ends with `T → native memory`, or in native memory if it ends with `!`."""
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    end = " → native memory" if path.endswith("!") else " → T → native memory"
    print("%x\t%s" % (at, path.rstrip("!") + end), flush=True)
    chunk = libc.calloc(1, 64)
    for place, word in enumerate(first_words):
        ctypes.c_uint64.from_address(chunk + place * 8).value = word
    ctypes.c_uint64.from_address(chunk + 24).value = at
    made = T()
    made.impl = chunk
    return made


class Cache:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def method(self):
        pass

    @staticmethod
    def static(x=t("__main__.Cache.static.__defaults__[0]!")):
        pass

    shared = t("__main__.Cache.shared!")


class Slots:
    __slots__ = ("x", "y")


class DictSub(dict):
    pass


class ListSub(list):
    __slots__ = ("extra",)


@dataclasses.dataclass
class Data:
    tensor: object


Point = collections.namedtuple("Point", "a b")

single = t("__main__.single!")
keep = [t("__main__.keep[*]"), t("__main__.keep[*]")]
nested = ([(t("__main__.nested[*][*][*]"),)],)
by_name = {"a": t("__main__.by_name[*]"), 7: [t("__main__.by_name[*][*]")]}
members = {Cache(x=t("__main__.members, element → Cache.x"))}
frozen = frozenset([Cache(x=t("__main__.frozen, element → Cache.x"))])
cache = Cache(store=[t("__main__.cache.store[*]")], inner=Cache(x=t("__main__.cache.inner → Cache.x")))
many = Cache(**{"a%d" % k: k for k in range(60)})
many.tensor = t("__main__.many.tensor")
slots = Slots()
slots.y = t("__main__.slots.y")
dict_sub = DictSub()
dict_sub.attribute = t("__main__.dict_sub.attribute")
list_sub = ListSub()
list_sub.extra = t("__main__.list_sub.extra")
# Native memory that begins with a small number and the address of a class is no object of this class.
similar = t("__main__.similar!", (3, id(Slots)))
similar_with_attributes = t("__main__.similar_with_attributes!", (3, id(Cache)))
data = Data(t("__main__.data.tensor"))
point = Point(1, t("__main__.point[*]"))


def positional(x=t("__main__.positional.__defaults__[0]!")):
    pass


def keyword(*, y=t("__main__.keyword.__kwdefaults__['y']!")):
    pass


def make():
    inside = t("__main__.closure closure inside!")
    other = [t("__main__.closure closure other[*]")]

    def closure():
        return inside, other

    return closure


closure = make()
closure.attribute = t("__main__.closure.attribute!")
hooks = [make.__class__(make.__code__, {**globals(), "t": lambda path: t("__main__.hooks[*] → function closure, " + path.split(" ", 1)[1].rstrip("!"))})()]
bound = Cache(x=t("__main__.bound.__self__ → Cache.x")).method
part = functools.partial(print, t("__main__.part.args[*]"), end=t("__main__.part.keywords[*]"))
queue = collections.deque([t("__main__.queue[*]")])
ordered = collections.OrderedDict(a=t("__main__.ordered[*]"))
default_dict = collections.defaultdict(list, a=t("__main__.default_dict[*]"))
space = types.SimpleNamespace(x=t("__main__.space.x"))
proxy = types.MappingProxyType({"a": t("__main__.proxy → dict[*]")})


@functools.lru_cache(maxsize=None)
def unbounded(n):
    return t("__main__.unbounded.cache[*]")


@functools.lru_cache(maxsize=4)
def bounded(n):
    return t("__main__.bounded.cache[*]")


unbounded(1)
bounded(1)


def encode(n):
    return t("__main__.caches[*] → lru_cache of encode.cache[*]")


caches = [functools.lru_cache(encode)]
caches[0](1)
callbacks = [functools.partial(encode, t("__main__.callbacks[*] → partial of encode.args[*]"))]


def generate_in_list():
    inside = t("__main__.suspended[*] → frame of generator generate_in_list, kinds.py, local inside")
    yield inside


def generate():
    inside = t("__main__.generator, local inside")
    yield inside
    yield


generator = generate()
next(generator)
suspended = [generate_in_list()]
next(suspended[0])


async def work():
    inside = t("__main__.coroutine, local inside")
    await asyncio.sleep(0)


coroutine = work()
coroutine.send(None)


def fail():
    inside = t("__main__.error.__traceback__ → frame of fail, kinds.py, local inside")
    raise ValueError("no")


try:
    fail()
except ValueError as caught:
    error = caught

variable = contextvars.ContextVar("request")
variable.set(t("context variable request!"))
variable_in = contextvars.ContextVar("in_copy")
context = contextvars.copy_context()
context.run(variable_in.set, t("__main__.context, context variable in_copy"))
local = threading.local()
local.x = t("__main__.local.x")
referred = Cache()
weak = weakref.ref(referred, functools.partial(print, t("__main__.weak.__callback__ → partial.args[*]")))
head = None
for step in range(100):
    head = Cache(next=head, **({} if step else {"last": t("__main__.head → … 98 × .next → Cache … → Cache.last")}))
iterator = iter([t("__main__.iterator → list[*]")])
mapping = map(print, [t("__main__.mapping → tuple[*] → list_iterator → list[*]")])


def in_thread():
    libc.prctl(15, b"loader", 0, 0, 0)
    inside = t("thread N (loader), frame of in_thread, kinds.py, local inside!")
    event.wait()


def in_main():
    inside = t("frame of in_main, kinds.py, local inside!")
    wrapped = [t("frame of in_main, kinds.py, local wrapped[*]")]
    inner = lambda: wrapped
    handled()


def handled():
    try:
        raise KeyError(t("exception being handled.args[*]"))
    except KeyError:
        print("ready", flush=True)
        sys.stdin.readline()


event = threading.Event()
threading.Thread(target=in_thread, daemon=True, name="loader").start()
time.sleep(0.1)
gc.collect()
in_main()
