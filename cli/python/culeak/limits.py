"""The limits on a test's GPU memory and CUDA objects, from its marks."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from culeak.sizes import Size, parse_size

MARKS = (
    "limit_gpu_leaks(limit, warmups=0): fail the test if it leaves more than this behind, e.g. \"1 MB\"; "
    "run it `warmups` times before it is measured",
    'limit_gpu_memory(limit): fail the test if its own allocations, without those of child processes, need more than this at '
    'once, e.g. "2 GB"',
    "limit_gpu_objects(stream=N, graph_exec=N, ..., warmups=0): fail the test if it leaves more than N streams, executable graphs, "
    "... behind",
)

#: The kinds of objects without an address, as the command names them.
KINDS = (
    "pool external multicast stream event module library graph-object graph-exec green-context texture surface external-semaphore "
    "user-object linker context graphics-resource"
).split()

#: Kinds of objects, each with the number that is allowed.
ObjectLimits = Tuple[Tuple[str, int], ...]


class Limits(NamedTuple):
    """Bytes, numbers of objects, and how often to run the test beforehand. None: no limit."""

    leaks: Optional[Size]
    memory: Optional[Size]
    warmups: int = 0
    objects: ObjectLimits = ()


def limits_of(item: Any, leaks: Optional[Size], objects: ObjectLimits = ()) -> Limits:
    """The limits of a test, from its nearest marks; ``leaks``, in bytes, and ``objects`` are the limits for tests without the mark.

    Raises ValueError if a mark is invalid."""
    memory, warmups = None, 0
    mark = item.get_closest_marker("limit_gpu_leaks")
    if mark is not None:
        leaks, warmups = _call(_leaks, mark)
    mark = item.get_closest_marker("limit_gpu_objects")
    if mark is not None:
        objects, of_objects = _call(_objects, mark)
        warmups = max(warmups, of_objects)
    mark = item.get_closest_marker("limit_gpu_memory")
    if mark is not None:
        memory = _call(_memory, mark)
    return Limits(leaks, memory, warmups, objects)


def has_limits(item: Any) -> bool:
    """Whether a test has one of the marks."""
    return any(item.get_closest_marker(name) for name in ("limit_gpu_leaks", "limit_gpu_memory", "limit_gpu_objects"))


def parse_allow(text: str) -> Tuple[Optional[Size], ObjectLimits]:
    """Bytes, if given, and numbers of objects, of ``1MiB,stream=4``. Raises ValueError if the text is something else."""
    leaks, objects = None, {}  # type: Optional[Size], Dict[str, int]
    for part in text.split(","):
        kind, is_object, number = part.partition("=")
        kind = kind.strip().replace("_", "-")
        if leaks is not None if not is_object else kind in objects:
            raise ValueError("two limits of one thing in {!r}; keep one of them".format(text))
        if not is_object:
            leaks = parse_size(part)
        elif number.strip().isdigit():
            objects[_kind(kind)] = int(number)
        else:
            raise ValueError("expected OBJECT=N, e.g. stream=4, not {!r}".format(part))
    return leaks, tuple(sorted(objects.items()))


def _kind(name: str) -> str:
    kind = name.replace("_", "-")
    if kind not in KINDS:
        raise ValueError("no kind of object is called {!r}; there are {}".format(name, ", ".join(kind.replace("-", "_") for kind in KINDS)))
    return kind


def _objects(*, warmups: int = 0, **limits: int) -> Any:
    if not limits:
        raise ValueError("it names no kind of object; expected e.g. stream=0")
    by_kind: Dict[str, int] = {}
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ValueError("{} must be a whole number of objects, 0 or more, not {!r}".format(name, limit))
        by_kind[_kind(name)] = limit
    return tuple(sorted(by_kind.items())), _runs(warmups)


def _leaks(limit: Any, *, warmups: int = 0) -> Any:
    return parse_size(limit), _runs(warmups)


def _runs(warmups: int) -> int:
    if isinstance(warmups, bool) or not isinstance(warmups, int) or warmups < 0:
        raise ValueError("warmups must be a whole number of runs, 0 or more, not {!r}".format(warmups))
    return warmups


def _memory(limit: Any) -> Any:
    return parse_size(limit)


def _call(function: Any, mark: Any) -> Any:
    try:
        return function(*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        reason = str(error).replace(function.__name__ + "()", "it")
        raise ValueError("mark {}: {}".format(mark.name, reason)) from None
