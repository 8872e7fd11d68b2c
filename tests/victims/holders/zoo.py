"""A zoo of holders: each keeps one block alive in a way of its own. Prints what a reader expects to be named, then answers
questions on standard input, one JSON list a line.

    ["walk", address, class, origin, [[via, holder], …]]   walks a path: "ok", or why it is wrong
    ["drop", name]                                         deletes a module global: the blocks that were freed; null if
                                                           it is not the only reference
    ["collect"]                                            gc.collect(): the blocks that were freed
    ["quit"]

An expectation is a class and texts that occur in the path in this order; `a|b` means one of them."""

import asyncio
import atexit
import builtins
import collections
import concurrent.futures
import contextlib
import contextvars
import ctypes
import dataclasses
import enum
import functools
import gc
import itertools
import json
import logging
import os
import queue
import sys
import threading
import types
import weakref

import hooks
import walking
from standin import address_of, allocate, begin, implementation, live, structure, tensor

gc.disable()
begin()
expected = []
# The Python objects that the blocks belong to: addresses as texts, which are no references.
owners = {}


def new(name, *texts, of="held", size=None):
    """A stand-in for the holder `name`, and what the path to it should say."""
    made = tensor(size or 1000 + 16 * len(expected))
    expect(name, address_of(made), *texts, of=of)
    owners[str(address_of(made))] = str(id(made))
    return made


def expect(name, address, *texts, of="held"):
    expected.append({"name": name, "address": str(address), "class": of.split("|"), "texts": texts})


def in_main(name, *texts):
    """A stand-in that the global `name` of this module holds."""
    return new(name, "__main__." + name, *texts)


# ---- containers ----

a_list = [in_main("a_list", "[*]")]
a_long_list = [None] * 1000 + [in_main("a_long_list", "[*]")]
a_dict = {"key": in_main("a_dict", "[*]|['key']")}
a_dict_of_numbers = {0: 0, 17: in_main("a_dict_of_numbers", "[*]|[17]")}
a_large_dict = dict.fromkeys(range(5000))
a_large_dict["far"] = in_main("a_large_dict", "[*]|['far']")
a_tuple = (1, (2, (3, in_main("a_tuple", "[*][*][*]|[*]"))))
a_set = {in_main("a_set", "[*]|{*}|member|element")}
a_frozenset = frozenset([in_main("a_frozenset", "[*]|{*}|member|element")])
a_key = {in_main("a_key", "key"): 1}
a_deque = collections.deque([None] * 100 + [in_main("a_deque", "[*]|[100]")])
an_ordered_dict = collections.OrderedDict(x=in_main("an_ordered_dict", "[*]|['x']"))
a_defaultdict = collections.defaultdict(list)
a_defaultdict["x"].append(in_main("a_defaultdict", "[*]|['x']", "[*]|[0]"))
a_chain_map = collections.ChainMap({}, {"x": in_main("a_chain_map", ".maps", "[*]|['x']")})
a_queue = queue.Queue()
a_queue.put(in_main("a_queue", ".queue", "[*]|[0]"))
a_simple_queue = queue.SimpleQueue()
a_simple_queue.put(in_main("a_simple_queue"))
a_namespace = types.SimpleNamespace(inner=in_main("a_namespace", ".inner"))
a_proxy = types.MappingProxyType({"x": in_main("a_proxy", "[*]|['x']")})
an_object_array = (ctypes.py_object * 3)(None, [in_main("an_object_array")], None)


# ---- objects and classes ----


class Cache:
    in_class = new("Cache.in_class", "__main__.Cache", ".in_class")

    def method(self):
        return self


class Derived(Cache):
    pass


class Slots:
    __slots__ = ("x", "y")


class Meta(type):
    pass


class DictWithAttribute(dict):
    pass


class ListWithSlot(list):
    __slots__ = ("extra",)


class Numbers(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("place", ctypes.c_uint64)]


@dataclasses.dataclass
class Record:
    value: object
    name: str = "record"


class Color(enum.Enum):
    RED = 1


class Lazy:
    @functools.cached_property
    def computed(self):
        return new("lazy.computed", "__main__.lazy", ".computed")


an_object = Cache()
an_object.store = in_main("an_object", ".store")
nested = Cache()
nested.inner = Cache()
nested.inner.items = [{"k": in_main("nested", ".inner", ".items", "[*]|[0]", "[*]|['k']")}]
with_slots = Slots()
with_slots.y = in_main("with_slots", ".y")
many_attributes = Cache()
for number in range(40):
    setattr(many_attributes, "field_%d" % number, None)
many_attributes.field_37 = in_main("many_attributes", ".field_37")
with_meta = Meta("WithMeta", (), {})
Meta.in_metaclass = new("Meta.in_metaclass", "__main__.", "Meta", ".in_metaclass")
a_dict_subclass = DictWithAttribute()
a_dict_subclass.extra = in_main("a_dict_subclass", ".extra")
a_list_subclass = ListWithSlot()
a_list_subclass.extra = in_main("a_list_subclass", ".extra")
a_named_tuple = collections.namedtuple("Pair", "left right")(1, in_main("a_named_tuple", "[*]|.right|[1]"))
a_record = Record(in_main("a_record", ".value"))
Color.RED.paint = new("Color.RED", "__main__.Color", ".paint")
lazy = Lazy()
assert lazy.computed is not None
a_structure = Numbers()
a_structure.place = implementation(1500)[0]
expect("a_structure", ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(a_structure.place + 24).value + 24).value, "__main__.a_structure")


# ---- functions ----


def closes_over(held):
    def inner():
        return held

    return inner


def with_default(x, held=new("with_default", "__main__.with_default", "__defaults__|default")):
    return x, held


def with_keyword_default(*, held=new("with_keyword_default", "__main__.with_keyword_default", "__kwdefaults__|default")):
    return held


def with_attribute():
    pass


@functools.lru_cache(maxsize=4)
def bounded_cache(key):
    return new("bounded_cache", "__main__.bounded_cache")


@functools.lru_cache(maxsize=None)
def unbounded_cache(key):
    return new("unbounded_cache", "__main__.unbounded_cache")


@functools.singledispatch
def dispatched(x):
    return x


def ignore(*_, **__):
    pass


a_closure = closes_over(in_main("a_closure", "__closure__|closure|held"))
with_attribute.cache = in_main("with_attribute", ".cache")
bounded_cache("key")
unbounded_cache("key")
dispatched.register(Cache, functools.partial(ignore, new("dispatched", "__main__.dispatched", ".args|args")))
a_bound_method = Cache().method
a_bound_method.__self__.inner = in_main("a_bound_method", ".__self__|self", ".inner")
a_partial = functools.partial(ignore, in_main("a_partial", ".args", "[*]|[0]"))
a_partial_with_keyword = functools.partial(ignore, word=in_main("a_partial_with_keyword", ".keywords", "[*]|['word']"))
a_static_method = staticmethod(in_main("a_static_method"))
a_property = property(functools.partial(ignore, in_main("a_property", ".args")))
a_builtin_method = [in_main("a_builtin_method", "self", "[*]|[0]")].append


class HasDescriptor:
    described = property(closes_over(new("HasDescriptor.described", "__main__.HasDescriptor", ".described")))


# ---- suspended work ----


class Suspend:
    def __await__(self):
        yield


def generates(held):
    yield 1
    return held


def delegates(held):
    yield from generates(held)


async def waits(held):
    await Suspend()
    return held


async def waits_inside(held):
    await waits(held)


async def generates_asynchronously(held):
    yield 1
    await Suspend()
    ignore(held)


def begun(suspended):
    suspended.send(None)
    return suspended


def task_of(held):
    async def wait_forever(held):
        await asyncio.get_running_loop().create_future()
        return held

    async def start():
        task = asyncio.ensure_future(wait_forever(held))
        await asyncio.sleep(0)
        return task

    return a_loop.run_until_complete(start())


a_generator = begun(generates(in_main("a_generator", "local held")))
a_delegating_generator = begun(delegates(in_main("a_delegating_generator", "local held")))
a_coroutine = begun(waits(in_main("a_coroutine", "local held")))
a_nested_coroutine = begun(waits_inside(in_main("a_nested_coroutine", "local held")))
an_async_generator = generates_asynchronously(in_main("an_async_generator", "local held"))
with contextlib.suppress(StopIteration):
    an_async_generator.asend(None).send(None)
a_loop = asyncio.new_event_loop()
a_task = task_of(new("a_task", "__main__.a_task|__main__.a_loop|_all_tasks|_scheduled_tasks", "local held"))
a_list_iterator = iter([0, in_main("a_list_iterator")])
a_map = map(ignore, [in_main("a_map")])
a_zip = zip([1], (in_main("a_zip"),))
a_chain = itertools.chain([in_main("a_chain")], [2])
an_enumeration = enumerate([in_main("an_enumeration")])
a_reversal = reversed([in_main("a_reversal"), 1])
a_future = concurrent.futures.Future()
a_future.set_result(in_main("a_future", "._result"))
an_unstarted_thread = threading.Thread(target=ignore, args=(in_main("an_unstarted_thread", "._args", "[*]|[0]"),))
an_exit_stack = contextlib.ExitStack()
an_exit_stack.callback(ignore, in_main("an_exit_stack", "._exit_callbacks"))
a_memory_view = memoryview(in_main("a_memory_view"))
atexit.register(ignore, new("atexit", of="held|native_holder"))


# ---- exceptions ----


def raises(held):
    inner = [held]
    raise ValueError(len(inner))


def caught(function, *arguments):
    try:
        function(*arguments)
    except ValueError as error:
        return error


def raises_from(held):
    try:
        raises(held)
    except ValueError:
        raise ValueError("another")  # noqa: B904


class Handler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


def logged(logger, held):
    try:
        raises(held)
    except ValueError:
        logger.exception("failed")


an_exception = caught(raises, in_main("an_exception", "__traceback__|traceback", "local held|local inner"))
with_arguments = ValueError(in_main("with_arguments", "args", "[*]|[0]"))
with_context = caught(raises_from, in_main("with_context", "__context__|context|__traceback__", "local held|local inner"))
a_log_handler = Handler()
logging.getLogger("zoo").addHandler(a_log_handler)
logged(logging.getLogger("zoo"), in_main("a_log_handler", ".records", "exc_info", "local held|local inner"))


# ---- threads and contexts ----


def sleeps(ready, held_by_thread):
    ready.set()
    threading.Event().wait()
    ignore(held_by_thread)


def start_thread():
    ready = threading.Event()
    arguments = (ready, new("thread", "(sleeper)", "sleeps", "local held_by_thread"))
    threading.Thread(target=sleeps, args=arguments, daemon=True, name="sleeper").start()
    ready.wait()


start_thread()
a_thread_local = threading.local()
a_thread_local.value = new("thread local", "local", ".value|['value']|[*]|value")
a_variable = contextvars.ContextVar("a_variable")
a_variable.set(new("context variable", "context|Context|a_variable"))


# ---- other places ----


class Watched:
    pass


watched = Watched()
a_weak_reference = weakref.ref(watched, functools.partial(ignore, in_main("a_weak_reference", "callback", ".args")))
other_module = sys.modules["other_module"] = types.ModuleType("other_module")
other_module.cache = [new("other module", "other_module", "cache", "[*]")]
del other_module
builtins.kept_in_builtins = new("builtins", "builtins.kept_in_builtins|builtins")
sys.excepthook = functools.partial(sys.excepthook, new("sys.excepthook", "sys.excepthook", ".args"))


def a_capsule_of(pointer):
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(pointer, None, None)


def capsule():
    implemented, address = implementation(1600)
    expect("a_capsule", address, "__main__.a_capsule")
    return a_capsule_of(implemented)


a_capsule = capsule()


# ---- cycles ----


class Node:
    pass


def cycles():
    """Nothing else refers to them, and the collector is disabled."""
    alone = Node()
    alone.itself = alone
    alone.held = new("cycle: object", "Node.itself|.itself", of="cycle")
    listed = [new("cycle: list", "list", of="cycle")]
    listed.append(listed)
    watched = Node()
    watched.itself, watched.held = watched, new("cycle: weakly referenced", "Node", of="cycle")
    Node.seen = weakref.ref(watched)
    first, second = Node(), Node()
    first.partner, second.partner = second, first
    second.held = new("cycle: two objects", "Node", "partner", of="cycle")
    mapped = {"held": new("cycle: dictionary", "dict", of="cycle")}
    mapped["itself"] = mapped
    behind = Node()
    behind.itself, behind.list = behind, [[new("cycle: behind it", "Node", of="cycle")]]

    def function(held=new("cycle: function", "function", of="cycle")):
        return function, held

    def generate(held):
        mine = [held]
        mine.append((yield))
        yield

    begun = generate(new("cycle: generator", "generate|generator", of="cycle"))
    next(begun)
    begun.send(begun)


cycles()


# ---- counted more often than referred to ----

native = ctypes.CDLL(os.environ["HOLDERS_LIBRARY"])
native.keep_object.argtypes = native.keep_list.argtypes = native.keep_in_structure.argtypes = [ctypes.c_void_p]
for function in ("keep_pointer", "keep_chain", "keep_in_vector", "keep_in_static", "keep_in_class"):
    getattr(native, function).argtypes = [ctypes.c_uint64]


def counted(thing):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return id(thing)


def native_holders():
    native.keep_object(counted(new("native: object", "held_object", of="native_holder")))
    native.keep_list(counted([new("native: list", "held_list", of="native_holder")]))
    native.keep_in_structure(counted(new("native: structure", "held_structure", of="native_holder")))
    counted(new("over-counted", "Tensor", of="over_counted"))
    counted([new("over-counted list", "list", of="over_counted")])


native_holders()


# ---- without Python ----


def native_only(name, text, keep):
    address = allocate(2000 + 16 * len(expected))
    keep(address)
    expect(name, address, *([text] if text else []), of="held" if text else "lost")


native_only("C: global", "held_pointer", native.keep_pointer)
native_only("C: structures", "held_chain", native.keep_chain)
native_only("C++: vector", "held_vector", native.keep_in_vector)
native_only("C++: static local", "held_static", native.keep_in_static)
native_only("C++: class", "held_class", native.keep_in_class)
class Handle:
    pass


def keeps_number():
    handle.address = allocate(2500)
    expect("a number", handle.address, "__main__.handle", ".address")


handle = Handle()
keeps_number()
native_only("lost", "", lambda address: None)
# The structure is lost, too: nothing has its address any more.
native_only("lost with its owner", "", lambda address: structure(80, 16, address) and None)


# ---- dropping a root ----

def two_roots():
    """In a function, whose frame is overwritten later: slots of a frame that is running may be stale."""
    shared = new("shared", "__main__.drops|__main__.also_drops")
    only = [new("drops", "__main__.drops", "[*]", size=5000), new("drops", "__main__.drops", "[*]", size=6000)]
    return only + [shared], {"mine": new("also_drops", "__main__.also_drops", size=7000), "shared": shared}


drops, also_drops = two_roots()


# ---- what the interpreter calls ----

hooks.install(new, ignore)


# ---- questions ----


def freed_by(action):
    before = dict(live)
    action()
    return sorted([int(address), size] for address, size in before.items() if address not in live)


# Nothing frees what the first two hold; the last one shares a block with another global.
NOT_DROPPED = ("a_structure", "a_capsule", "also_drops")


def drop(name):
    """What was freed with the last reference to a global's value; nothing if there are others."""
    module, _, attribute = name.rpartition(".")
    space = vars(sys.modules.get(module, object))
    # One of the module, and at most one of the call.
    if attribute not in space or attribute in NOT_DROPPED or sys.getrefcount(space[attribute]) > 2:
        return None
    return freed_by(lambda: (delattr(sys.modules[module], attribute), gc.collect()))


def answer(question):
    action, *words = question
    if action == "walk":
        return walking.walk(owners, *words)
    if action == "drop":
        return drop(*words)
    if action == "collect":
        return freed_by(gc.collect)
    return "ignored"


def serve(in_frame):
    """The frame that waits for questions holds a block."""
    for line in sys.stdin:
        question = json.loads(line)
        if question[0] == "quit":
            break
        print(json.dumps(answer(question)), flush=True)
    return in_frame


def clear_frames(depth):
    """Overwrites what earlier calls left in the memory of frames."""
    a = b = c = d = e = f = g = h = None
    return clear_frames(depth - 1) if depth else (a, b, c, d, e, f, g, h)


def main():
    block = new("frame", "serve", "local in_frame")
    hidden, block = [block], None
    # What the calls so far left on the stacks is no holder.
    native.clear_stack()
    clear_frames(30)
    print(json.dumps(expected), flush=True)
    print("READY", os.getpid(), flush=True)
    serve(hidden.pop())
    # Without the interpreter's shutdown: native holders keep what it would free.
    os._exit(0)


if __name__ == "__main__":
    main()
