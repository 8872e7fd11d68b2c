"""Walks a path from its root, as a reader of the report would: by attributes, indices, closures and the locals of frames."""

import functools
import gc
import re
import sys
import threading
import types

CACHE = type(functools.lru_cache(len))
CELL = type((lambda held: lambda: held)(0).__closure__[0])
# What may be between two holders of a path without a name.
UNNAMED = (dict, tuple, list, CELL, types.FrameType, types.TracebackType)
SUSPENDED = ("gi_frame", "cr_frame", "ag_frame")
TOKEN = re.compile(r"\[(?:'(?:[^'\\]|\\.)*'|[^\]]*)\]|\{\*\}|\.\w+|(?:local|closure) \w+|[^.\[{ ]+")
FRAME = re.compile(r"frame of (?:generator |coroutine |async generator )?([\w.<>]+), ([^,]+?):(\d+)(?:, local (\w+))?")


def walk(owners, address, of, origin, steps):
    """Whether each of these names leads to the next holder, and the last one to the owner of the block."""
    owner = int(owners.get(str(address), 0))
    if not owner:
        return "ok"  # no Python object owns the block
    if of == "cycle":
        return in_cycle(owner, origin, steps)
    if of != "held":
        return "ok"
    found = begin(origin)
    if found is None:
        return "ok"  # a native root: nothing that Python could walk
    trace = [origin]
    for via, holder in steps:
        if not found or any(id(one) == owner for one in found):
            break
        trace.append(via + " -> " + holder)
        found = named(unique(follow(found, via)), holder)
    if any(id(one) == owner for one in found):
        return "ok"
    return ("leads elsewhere: " if found else "not found: ") + " ".join(trace)


def unique(things):
    return list({id(one): one for one in things}.values())


# ---- roots ----


def begin(origin):
    """The objects that a root's name means; None if it is not a name in Python."""
    frame = FRAME.match(origin)
    if frame and frame.group(4):
        found, rest = from_threads(*frame.groups()), origin[frame.end() :]
        return follow(found, rest) if rest else found
    name = re.match(r"[A-Za-z_][\w.]*", origin)
    if not name:
        return None
    words = name.group(0).split(".")
    for count in range(len(words) - 1, 0, -1):
        module = sys.modules.get(".".join(words[:count]))
        if module is not None:
            return follow([module], "".join("." + word for word in words[count:]) + origin[name.end() :])
    return None


def from_threads(function, file, line, local):
    found = []
    for frame in sys._current_frames().values():
        while frame is not None:
            if fits(frame, function, file) and local in frame.f_locals:
                found.append(frame.f_locals[local])
            frame = frame.f_back
    return found


def fits(frame, function, file):
    code = frame.f_code
    return function.split(".")[-1] == code.co_name and code.co_filename.endswith(file)


# ---- steps ----


def follow(found, via):
    tokens = TOKEN.findall(via)
    if not tokens:
        return [inner for one in found for inner in referents(one)] if via == "" and found else found
    for token in tokens:
        found = unique(value for one in found for value in followed(one, token))
    return found


def followed(one, token):
    """What a name of one object's reference means. A name that is no attribute and no index is checked by the collector: the object
    refers to it."""
    if token.startswith("."):
        return attribute(one, token[1:]) or referents(one)
    if token.startswith("local "):
        return local(one, token[6:])
    if token.startswith("closure "):
        return closure(one, token[8:])
    if token.startswith(("[", "{")):
        return items(one, token[1:-1])
    return referents(one)


def attribute(one, name):
    found = []
    if isinstance(one, CACHE) and name == "cache":
        return [one]  # only the collector sees its dictionary, whose values are no objects for Python
    if isinstance(one, dict) and name in one:
        found.append(one[name])
    for look in (lambda: object.__getattribute__(one, name), lambda: type.__getattribute__(one, name), lambda: vars(one)[name]):
        try:
            found.append(look())
        except Exception:  # noqa: BLE001: any object may fail in its own way
            pass
    return found


def items(one, index):
    if isinstance(one, threading.local):
        return list(one.__dict__.values())
    if isinstance(one, (dict, types.MappingProxyType)):
        # A key that is no text or number is not written out.
        exact = [value for key, value in one.items() if repr(key) == index]
        return exact or (list(one.values()) + list(one) if index == "*" or index.startswith("<") else [])
    if isinstance(one, (set, frozenset)):
        return list(one)
    if isinstance(one, (list, tuple)) or type(one).__name__ == "deque":
        if index == "*":
            return list(one)
        return [one[int(index)]] if index.isdigit() and int(index) < len(one) else []
    return referents(one)


def local(one, name):
    for frame in SUSPENDED:
        one = getattr(one, frame, one)
    values = getattr(one, "f_locals", {})
    return [values[name]] if name in values else []


def closure(one, name):
    if isinstance(one, property):
        one = one.fget
    names = getattr(getattr(one, "__code__", None), "co_freevars", ())
    return [one.__closure__[names.index(name)].cell_contents] if name in names else []


def referents(one, depth=3):
    """What an object refers to, also through objects that have no name in a path."""
    found = gc.get_referents(one)
    if depth > 1:
        found += [inner for outer in found if isinstance(outer, UNNAMED) for inner in referents(outer, depth - 1)]
    return found


def named(found, holder):
    """Those that a path may call this: by their type, or by their own name."""
    frame = FRAME.match(holder)
    if frame:
        return [one for start in found for one in frames(start) if fits(one, frame.group(1), frame.group(2))]
    matching = [one for one in found if type(one).__name__ in holder or (getattr(one, "__name__", None) or "\0") in holder]
    return matching or ([] if re.match(r"(list|dict|tuple|set|Tensor)\b", holder) else found)


def frames(start):
    """The frames that an object stands for: its own, or those of a traceback."""
    for frame in SUSPENDED:
        start = getattr(start, frame, start)
    if isinstance(start, types.FrameType):
        yield start
    while isinstance(start, types.TracebackType):
        yield start.tb_frame
        start = start.tb_next


# ---- cycles ----


def in_cycle(owner, origin, steps):
    """Every class that the text names occurs among the garbage that leads to the owner."""
    everything = {id(one): one for one in gc.get_objects()}
    found, seen = [everything[owner]], {owner}
    while found and len(seen) < 2000:
        one = found.pop()
        for other in gc.get_referrers(one):
            if id(other) not in seen and id(other) in everything and other is not everything and other is not found:
                if not isinstance(other, (types.FrameType, types.ModuleType)):
                    seen.add(id(other))
                    found.append(other)
    types_here = {type(everything[one]).__name__ for one in seen}
    text = origin + " " + " ".join(via + " " + holder for via, holder in steps)
    wrong = set(re.findall(r"\b(?:Node|list|dict|Tensor)\b", text)) - types_here
    return "ok" if not wrong else "not in the cycle: " + ", ".join(sorted(wrong)) + " of " + text
