"""Walks a path from its root, as a reader of the report would: by attributes, indices and the locals of frames."""

import gc
import re
import sys
import threading
import types

CONTAINERS = (dict, tuple, list, types.CellType if hasattr(types, "CellType") else type((lambda x: lambda: x)(0).__closure__[0]), types.FrameType)
TOKEN = re.compile(r"\[(?:\*|-?\d+|'(?:[^'\\]|\\.)*'|[^\]]*)\]|\{\*\}|\.[A-Za-z_][\w.]*?(?=[.\[{ ]|$)|local [\w.]+|[^.\[{]+")


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
    if not found:
        return "no such root: " + origin
    trace = [origin]
    for via, holder in steps:
        if any(id(one) == owner for one in found):
            return "ok"
        trace.append(via + " -> " + holder)
        found = named(unique(follow(found, via)), holder)
        if not found:
            return "not found: " + " ".join(trace)
    return "ok" if any(id(one) == owner for one in found) else "leads elsewhere: " + " ".join(trace)


def unique(things):
    return list({id(one): one for one in things}.values())


# ---- roots ----


def begin(origin):
    """The objects that a root's name means; None if it is not a name in Python."""
    frame = re.search(r"(?:frame|generator|coroutine)s? (?:of )?([\w.<>]+)[^,]*, ([^,:]+):(\d+), local (\w+)", origin)
    if frame:
        return from_frames(*frame.groups())
    module = re.match(r"[A-Za-z_][\w.]*", origin)
    if not module:
        return None
    return from_modules(module.group(0))


def from_modules(name):
    words = name.split(".")
    for count in range(len(words) - 1, 0, -1):
        module = sys.modules.get(".".join(words[:count]))
        if module is not None:
            found = [module]
            for word in words[count:]:
                found = [value for one in found for value in attribute(one, word)]
            return found
    return None


def from_frames(function, file, line, local):
    found = []
    for frame in sys._current_frames().values():
        while frame is not None:
            code = frame.f_code
            if function.split(".")[-1] in (code.co_name, "<module>") and code.co_filename.endswith(file):
                found.extend([frame.f_locals[local]] if local in frame.f_locals else [])
            frame = frame.f_back
    return found


# ---- steps ----


def follow(found, via):
    if via.startswith(("__main__.", "local ")) and len(TOKEN.findall(via)) <= 1:
        tokens = [via]
    else:
        tokens = [token.strip() for token in TOKEN.findall(via) if token.strip()]
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
    if token.startswith(("[", "{")):
        return items(one, token[1:-1]) or referents(one)
    return referents(one)


def attribute(one, name):
    found = []
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
    mapping = one if isinstance(one, (dict, types.MappingProxyType)) else None
    if mapping is None and not isinstance(one, (list, tuple, set, frozenset)) and type(one).__name__ != "deque":
        return []
    if mapping is not None:
        all_of = list(mapping.values()) if index == "*" else [value for key, value in mapping.items() if shown(key) == index]
        return all_of + (list(mapping) if index == "*" else [])
    if index == "*" or isinstance(one, (set, frozenset)):
        return list(one)
    place = int(index)
    return [one[place]] if -len(one) <= place < len(one) else []


def shown(key):
    return repr(key)


def local(one, name):
    for frame in ("gi_frame", "cr_frame", "ag_frame"):
        one = getattr(one, frame, one)
    values = getattr(one, "f_locals", {})
    return [values[name]] if name in values else []


def referents(one, depth=3):
    """What an object refers to, also through containers that have no name in a path."""
    found = gc.get_referents(one)
    if depth > 1:
        found += [inner for outer in found if isinstance(outer, CONTAINERS) for inner in referents(outer, depth - 1)]
    return found


def named(found, holder):
    """Those that a path may call this: by their type, or by their own name."""
    fits = [one for one in found if type(one).__name__ in holder or (getattr(one, "__name__", None) or "\0") in holder]
    return fits or ([] if re.match(r"(list|dict|tuple|set|Tensor)\b", holder) else found)


# ---- cycles ----


def in_cycle(owner, origin, steps):
    """Every class that the text names occurs among the garbage that leads to the owner."""
    everything = {id(one): one for one in gc.get_objects()}
    found, seen = [everything[owner]], {owner}
    while found:
        one = found.pop()
        for other in gc.get_referrers(one):
            if id(other) not in seen and id(other) in everything and other is not everything and other is not found:
                if not isinstance(other, types.FrameType) and type(other).__name__ != "module":
                    seen.add(id(other))
                    found.append(other)
        if len(seen) > 2000:
            break
    types_here = {type(everything[one]).__name__ for one in seen if one in everything}
    text = origin + " " + " ".join(via + " " + holder for via, holder in steps)
    named_types = set(re.findall(r"\b(?:Node|list|dict|Tensor)\b", text))
    wrong = named_types - types_here
    return "ok" if not wrong else "not in the cycle: " + ", ".join(sorted(wrong)) + " of " + text
