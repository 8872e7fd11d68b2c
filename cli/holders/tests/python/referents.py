"""Makes objects of as many types as it can, and prints what the collector sees of each: address, type, addresses of
referents. Then it waits, so that the same can be read from outside."""

import array, ast, asyncio, collections, concurrent.futures, contextlib, contextvars, copy, csv, ctypes, dataclasses
import datetime, decimal, enum, fractions, functools, gc, inspect, io, itertools, json, logging, operator, os, pickle
import queue, random, re, select, selectors, socket, string, struct, sys, tempfile, threading, time, traceback, types
import typing, unittest, urllib.parse, weakref, xml.etree.ElementTree, zlib

keep = []


def add(*objects):
    keep.extend(objects)
    return objects and objects[0]


class Plain:
    def method(self):
        return self


def plain(attributes):
    made = Plain()
    for number in range(attributes):
        setattr(made, "attribute%d" % number, [number])
    return add(made)


class Few(Plain):
    def __init__(self):
        self.a, self.b, self.c = [1], [2], [3]


class Slots:
    __slots__ = ("one", "two", "__weakref__")

    def __init__(self):
        self.one = [1]


class MoreSlots(Slots):
    __slots__ = ("three", "__dict__")


class Meta(type):
    def __new__(meta, name, bases, space):
        made = super().__new__(meta, name, bases, space)
        made.extra = [name]
        return made


class WithMeta(metaclass=Meta):
    attribute = [1]


class Number(int):
    pass


class BigNumber(int):
    pass


class Real(float):
    __slots__ = ("slot", "__dict__")


class Text(str):
    __slots__ = ("slot", "__dict__")


class Bytes(bytes):
    pass


class Tuple(tuple):
    pass


class List(list):
    __slots__ = ("slot", "__dict__")


class Dict(dict):
    __slots__ = ("slot", "__dict__")


class Set(set):
    __slots__ = ("slot", "__dict__")


class Ordered(collections.OrderedDict):
    pass


class Deque(collections.deque):
    pass


class Error(ValueError):
    def __init__(self, value):
        super().__init__(value)
        self.value = [value]


class SlotError(OSError):
    __slots__ = ("slot",)


class Weak(weakref.ref):
    __slots__ = ("key", "__dict__")


class Color(enum.Enum):
    RED = 1
    BLUE = [2]


class Flag(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Data:
    a: list
    b: dict = dataclasses.field(default_factory=dict)


Point = collections.namedtuple("Point", "x y")
T = typing.TypeVar("T")


class Generic(typing.Generic[T]):
    pass


def attributes_of_all_kinds():
    for number in (0, 1, 2, 5, 29, 30, 31, 40, 200):
        plain(number)
    for made in (Number(5), BigNumber(10**50), Real(1.5), Text("text"), Text("\u4e2d"), Bytes(b"bytes"), Tuple([[1], [2]])):
        made.attribute = [1]
        add(made)
    for made in (Real(2.5), Text("other"), List([[1]]), Dict(a=[1]), Set([(1,)])):
        made.slot, made.attribute = [1], [2]
        add(made)
    one, two, three, four = Few(), Few(), Few(), Few()
    vars(one)["d"] = [4]
    del two.b
    three.__dict__ = {"z": [5]}
    vars(four)
    add(one, two, three, four, vars(four))
    slots = MoreSlots()
    slots.three, slots.other = [3], [4]
    add(slots, Slots(), WithMeta(), WithMeta, Data([1]), Point([1], [2]), Color.BLUE, Flag.A | Flag.B, Generic[int]())
    space = types.SimpleNamespace(a=[1])
    add(space, types.ModuleType("made"), copy.copy(one))
    weak = Weak(one, lambda weak: None)
    weak.key, weak.other = [1], [2]
    add(weak, weakref.ref(two), weakref.proxy(three, add), weakref.WeakMethod(one.method), weakref.finalize(four, add))
    tables = weakref.WeakKeyDictionary({one: [1]}), weakref.WeakValueDictionary(a=two), weakref.WeakSet([three])
    add(*tables)


def containers():
    split, removed = {}, set(range(20))
    for number in range(10):
        removed.discard(number)
    mixed = {"a": [1], 2: [2], (3, (4,)): [3], None: [4], "b": {}}
    del mixed[2]
    add(mixed, removed, {"only": [1], "text": (2, [3])}, {(1, (2, [3].__len__)): 4}, {frozenset([(1, 2)]): [1]})
    add(set(), {(1, 2), (3, 4)}, frozenset([(1, 2)]), {Plain() for _ in range(50)})
    ordered = collections.OrderedDict(((number, (number,)), [number]) for number in range(20))
    del ordered[(3, (3,))]
    ordered.move_to_end((4, (4,)))
    own = Ordered(a=[1])
    own.attribute = [2]
    add(ordered, own, collections.OrderedDict(a=[1]), collections.OrderedDict())
    queue_of = collections.deque(maxlen=100)
    for number in range(250):
        queue_of.append([number])
    queue_of.rotate(30)
    deque = Deque([[1], [2]])
    deque.attribute = [3]
    add(queue_of, deque, collections.deque())
    add(collections.defaultdict(list, a=[1]), collections.Counter("abc"), collections.ChainMap({"a": [1]}, {}))
    add(collections.UserDict(a=[1]), collections.UserList([[1]]), types.MappingProxyType({"a": [1]}))
    growing = [[number] for number in range(1000)]
    del growing[500:]
    add(growing, [], [None] * 10, ([1], [2]), tuple([number] for number in range(300)))
    shared = [0]
    add([shared, shared, shared], (shared, shared), {"a": shared, "b": shared})
    loop = []
    loop.append(loop)
    add(loop, slice([1], [2], [3]), memoryview(bytearray(10)), memoryview(memoryview(b"abc"))[1:], array.array("Q", [1]))
    views = {"a": [1]}
    add(views.keys(), views.values(), views.items(), iter(views), iter(views.values()), iter(views.items()), split)
    add(iter([1]), iter(([1],)), iter({1}), reversed([1]), enumerate([1]), zip([1], [2]), map(len, [[1]]), filter(None, [1]))
    add(iter(int, 1), iter("text"), iter(b"bytes"), iter(range(5)), range(2), reversed({"a": 1}) if sys.version_info > (3, 8) else 0)


def functions():
    captured, late = [1], None

    def inner(a, b=[2], *, c=[3]) -> [4]:
        return captured, late

    inner.attribute = [5]
    late = [6]

    def annotated(x: "list", y: Plain = None):
        return x

    def empty_cell():
        return missing

    if not keep:
        missing = 0
    add(inner, annotated, empty_cell, lambda: captured, inner.__code__, [].append, len, "a".join, Plain().method)
    add(functools.partial(inner, [1], b=[2]), functools.partialmethod(inner, [1]), operator.itemgetter(1, [2]))
    add(operator.attrgetter("a.b"), operator.methodcaller("m", [1], key=[2]), functools.cmp_to_key(inner)([1]))
    for size in (None, 10):
        cached = functools.lru_cache(size)(lambda value: [value])
        for number in range(20):
            cached((number,))
            cached(number)
        add(cached)
    bound = functools.lru_cache(5, typed=True)(lambda value, other=0: [value])
    bound.attribute = [1]
    bound(1.5, other=(1,))
    add(bound, functools.singledispatch(inner), functools.wraps(inner)(lambda: None), functools.cached_property(inner))
    add(property(inner, doc=[1]), staticmethod(inner), classmethod(inner), super(Few, Few()), super(Few, Few))
    add(object().__str__, [].__add__, int.__dict__["real"], list.append, dict.__dict__["fromkeys"], Slots.one, type.mro)
    add(typing.List[int], typing.Optional[Plain], typing.Callable[[int], str], T, typing.Union[int, str])
    if sys.version_info >= (3, 9):
        add(list[Plain], dict[str, Plain], functools.cache(inner))
    if sys.version_info >= (3, 10):
        add(int | Plain)
    if sys.version_info >= (3, 12):
        space = {}
        exec("def generic[X: (int, str)](x: X) -> X: return x\ntype Alias[Y] = list[Y]\nclass G[Z]: pass", space)
        add(space)


def running():
    def count(argument, *rest, **more):
        local = [1]
        for number in (yield local), [2]:
            with contextlib.suppress(Exception):
                yield [number, argument]

    def outer():
        received = yield from count([3], [4], key=[5])
        return received

    started, ended, delegating, failed = count([1]), count([2]), outer(), count([3])
    next(started), list(ended), next(delegating), next(delegating), next(failed)
    try:
        failed.throw(Error("thrown"))
    except Error as error:
        add(error)

    async def coroutine(argument):
        local = [1]
        await asyncio.sleep(1000)
        return local, argument

    async def generator(argument):
        yield [argument]
        await asyncio.sleep(0)
        yield [argument]

    waiting, values = coroutine([1]), generator([2])
    in_with = count([7])
    next(in_with), next(in_with)

    def handles():
        try:
            raise Error("handled")
        except Error:
            yield [1]

    handling = handles()
    next(handling)
    add(count([1]), started, ended, delegating, failed, waiting, values, in_with, handling, (x for x in [[1]]))
    add(started.gi_frame, inspect.currentframe(), values.asend(None), coroutine([2]).__await__(), waiting)
    loop = asyncio.new_event_loop()
    context = contextvars.copy_context()
    variable = contextvars.ContextVar("variable", default=[0])
    others = [contextvars.ContextVar("other%d" % number) for number in range(100)]

    async def main():
        tasks = [asyncio.ensure_future(coroutine([number])) for number in range(5)]
        agen = generator([8])
        await agen.__anext__()
        future = loop.create_future()
        future.add_done_callback(add)
        add(tasks, future, agen, asyncio.Queue(), asyncio.Lock(), asyncio.Event(), asyncio.gather(*tasks[:2]))
        await asyncio.sleep(0)
        add(asyncio.create_task(asyncio.wait_for(asyncio.sleep(100), 50)))
        await asyncio.sleep(0)

    def changed():
        tokens = [variable.set([number]) for number in range(3)]
        for number, other in enumerate(others):
            other.set([number])
        loop.run_until_complete(main())
        variable.get()
        return add(tokens, contextvars.copy_context())

    context.run(changed)
    add(context, variable, others, loop)


def errors():
    def fails(depth):
        local = [depth]
        if depth:
            try:
                fails(depth - 1)
            except Exception as error:
                raise Error(local) from error
        {}[tuple(local)]

    try:
        fails(3)
    except Exception as error:
        add(error, error.__traceback__, sys.exc_info())
        with contextlib.suppress(AttributeError):
            error.add_note("note")
        add(traceback.TracebackException.from_exception(error))
    for code in ("import nothing_", "open('/nowhere')", "1 +", "undefined", "''.x", "b'\\xff'.decode()", "'\\udc80'.encode()", "[][0]", "1/0"):
        try:
            exec(code, {})
        except Exception as error:
            add(error)
    slotted = SlotError(2, "no", "file")
    slotted.slot = [1]
    add(slotted, StopIteration([1]), SystemExit([2]), KeyError((1, [2])), ImportError("a", name="b", path="c"))
    if sys.version_info >= (3, 11):
        add(ExceptionGroup("group", [Error(1), Error(2)]))


def iterators():
    tee = itertools.tee(iter([[number] for number in range(200)]), 3)
    for _ in range(120):
        next(tee[1])
    group = itertools.groupby([[1], [1], [2]])
    add(next(group), group, *tee)
    add(itertools.chain([1], [2]), itertools.chain.from_iterable([[1]]), itertools.cycle([[1]]), itertools.count([1][0], 2.5))
    add(itertools.repeat([1]), itertools.accumulate([[1]], operator.add), itertools.compress([1], [1]))
    add(itertools.islice([1], 1), itertools.starmap(len, [([1],)]), itertools.takewhile(bool, [1]), itertools.dropwhile(bool, [1]))
    add(itertools.filterfalse(None, [1]), itertools.zip_longest([1], [2]), itertools.product([1], [[2]], repeat=2))
    add(itertools.combinations([[1], [2]], 2), itertools.permutations([[1], [2]]), itertools.combinations_with_replacement([[1]], 2))
    for made in keep[-8:]:
        with contextlib.suppress(TypeError, StopIteration):
            next(made)


def libraries():
    class Structure(ctypes.Structure):
        _fields_ = [("number", ctypes.c_long), ("pointer", ctypes.POINTER(ctypes.c_int)), ("object", ctypes.py_object)]

    structure = Structure(1, ctypes.pointer(ctypes.c_int(5)), [1])
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda value: value)
    add(structure, structure.pointer, callback, (ctypes.c_char_p * 3)(b"a"), ctypes.py_object([1]), ctypes.CDLL(None).strlen)
    add(ctypes.cast(structure.pointer, ctypes.c_void_p), ctypes.byref(structure), ctypes.create_string_buffer(10))
    local = threading.local()
    local.value = [1]
    ready, go = threading.Event(), threading.Event()

    def work(argument):
        local.value = [argument]
        kept = [argument, local]
        ready.set()
        go.wait()
        return kept

    thread = threading.Thread(target=work, args=([1],), daemon=True)
    thread.start()
    ready.wait()
    add(local, thread, threading.Lock(), threading.RLock(), threading.Condition(), threading.Semaphore(), queue.Queue())
    add(io.BytesIO(b"bytes"), io.StringIO("text"), tempfile.TemporaryFile(), open(os.devnull), io.TextIOWrapper(io.BytesIO()))
    add(io.BufferedReader(io.BytesIO()), io.BufferedRWPair(io.BytesIO(), io.BytesIO()), sys.stdout, csv.reader(["a,b"]))
    add(csv.writer(io.StringIO()), csv.DictReader(["a"]), json.JSONEncoder(), json.JSONDecoder(), json.scanner.make_scanner(json.JSONDecoder()))
    pickler = pickle.Pickler(io.BytesIO())
    pickler.dump([[1], {"a": (2,)}])
    add(pickler, pickle.Unpickler(io.BytesIO(b"")), re.compile("(a)"), re.match("(a)", "a"), re.finditer("a", "aa"))
    tree = xml.etree.ElementTree.fromstring("<a b='c'><d>text</d><e/></a>")
    add(tree, xml.etree.ElementTree.XMLParser(), struct.Struct("iq"), zlib.compressobj(), random.Random(1))
    add(datetime.datetime.now(datetime.timezone.utc), datetime.timezone(datetime.timedelta(hours=1)), decimal.getcontext(), fractions.Fraction(1, 3))
    add(logging.getLogger("a.b"), string.Template("$a"), ast.parse("def f(x): return [x]"), unittest.mock if hasattr(unittest, "mock") else 0)
    pair = socket.socketpair()
    selector = selectors.DefaultSelector()
    selector.register(pair[0], selectors.EVENT_READ, [1])
    add(pair, selector, select.epoll(), os.scandir("/"), os.stat("/"), sys.version_info, time.localtime(), os.environ)
    add(concurrent.futures.ThreadPoolExecutor(1), concurrent.futures.Future(), urllib.parse.urlparse("http://a/b"))
    add(compile("a = [1]", "file", "exec"), sys.modules, sys.__dict__, gc.callbacks, sys.flags, types.CodeType)
    add(ctypes.pythonapi.PyCapsule_New if hasattr(ctypes.pythonapi, "PyCapsule_New") else 0, datetime.datetime_CAPI if hasattr(datetime, "datetime_CAPI") else 0)


def report():
    gc.collect()
    gc.disable()
    skipped = {id(keep), id(globals()), id(sys._getframe()), id(sys._getframe(1))}
    objects = gc.get_objects()
    for _ in range(2):  # some types are completed when they are first used
        rows = ["%d %s %s\n" % (id(one), type(one).__name__, " ".join(map(str, map(id, gc.get_referents(one))))) for one in objects if id(one) not in skipped]
    sys.stdout.write("%d\n" % len(rows) + "".join(rows))
    sys.stdout.flush()
    return objects


for make in (attributes_of_all_kinds, containers, functions, running, errors, iterators, libraries):
    make()
objects = report()
sys.stdin.readline()
os._exit(0)
