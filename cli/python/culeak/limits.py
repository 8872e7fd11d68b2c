"""The limits on a test's GPU memory, from its marks."""

from typing import Any, NamedTuple, Optional

from culeak.sizes import parse_size

MARKS = (
    "limit_gpu_leaks(limit, warmups=0): fail the test if it leaves more than this behind, e.g. \"1 MB\"; "
    "run it `warmups` times before it is measured",
    'limit_gpu_memory(limit): fail the test if its own allocations need more than this at once, e.g. "2 GB"',
)


class Limits(NamedTuple):
    """Bytes, and how often to run the test beforehand. None: no limit."""

    leaks: Optional[int]
    memory: Optional[int]
    warmups: int = 0


def limits_of(item: Any, leaks: Optional[int]) -> Limits:
    """The limits of a test, from its nearest marks; ``leaks``, in bytes, is the limit for tests without a mark.

    Raises ValueError if a mark is invalid."""
    memory, warmups = None, 0
    mark = item.get_closest_marker("limit_gpu_leaks")
    if mark is not None:
        leaks, warmups = _call(_leaks, mark)
    mark = item.get_closest_marker("limit_gpu_memory")
    if mark is not None:
        memory = _call(_memory, mark)
    return Limits(leaks, memory, warmups)


def has_limits(item: Any) -> bool:
    """Whether a test has one of the marks."""
    return any(item.get_closest_marker(name) for name in ("limit_gpu_leaks", "limit_gpu_memory"))


def _leaks(limit: Any, *, warmups: int = 0) -> Any:
    if isinstance(warmups, bool) or not isinstance(warmups, int) or warmups < 0:
        raise ValueError("warmups must be a whole number of runs, 0 or more, not {!r}".format(warmups))
    return parse_size(limit), warmups


def _memory(limit: Any) -> Any:
    return parse_size(limit)


def _call(function: Any, mark: Any) -> Any:
    try:
        return function(*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        reason = str(error).replace(function.__name__ + "()", "it")
        raise ValueError("mark {}: {}".format(mark.name, reason)) from None
