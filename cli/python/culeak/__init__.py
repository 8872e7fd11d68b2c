"""culeak from Python: marks, phases, snapshots and repeated scenarios, in a process that is being recorded.

The preload library does the recording; ``culeak run`` or ``pytest --culeak`` loads it into the interpreter. Without it
these functions do nothing, so they may stay in a program.
"""

from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

from culeak.recorder import Recorder

__all__ = ["is_recorded", "mark", "phase", "repeat_until_stable", "repeating", "snapshot"]


def is_recorded() -> bool:
    """Whether this process runs under the preload library."""
    return Recorder.here() is not None


def mark(name: str) -> None:
    """Sets a mark: a named point in time for reports, ``culeak trend`` and ``culeak check --since``."""
    recorder: Optional[Recorder] = Recorder.here()
    if recorder is not None:
        recorder.mark(name)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Names the time of a ``with`` block, or of a function as ``@culeak.phase("load")``, for ``culeak report --view phases``."""
    recorder: Optional[Recorder] = Recorder.here()
    if recorder is None:
        yield
        return
    number = recorder.begin_phase(name)
    try:
        yield
    finally:
        recorder.end_phase(number)


def snapshot(name: str) -> None:
    """Writes a snapshot of this point in time beside the recording, for every command to read."""
    recorder: Optional[Recorder] = Recorder.here()
    if recorder is not None:
        recorder.snapshot(name)


def repeat_until_stable(scenario: Callable[[], Any], at_most: int = 8) -> int:
    """For tests: calls ``scenario`` until a round leaves no more GPU memory behind than the round before, and returns the number of rounds.

    If each of ``at_most`` rounds leaves more, it raises an AssertionError with the lines that allocated it, and what holds it. Without
    culeak it calls the scenario once, and warns."""
    __tracebackhide__ = True
    from culeak import repeat

    return repeat.repeat_until_stable(scenario, at_most)


@contextmanager
def repeating(scenario: Callable[[], Any], until: str = "stable", at_most: int = 8) -> Iterator[None]:
    """``repeat_until_stable(scenario, at_most)`` after a ``with`` block, such as a warm-up, whose memory does not count."""
    __tracebackhide__ = True
    if until != "stable":
        raise ValueError("until must be 'stable', not {!r}".format(until))
    yield
    repeat_until_stable(scenario, at_most)
