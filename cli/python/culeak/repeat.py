"""Repeats a scenario until the set of held blocks stops growing.

::

    mark ─ scenario, garbage collected ─ what is held since the mark, by stack ┐
              ▲                                                                │
              └──────────── a stack holds more than after the round before ◄───┘
                                              │ after at_most rounds: StillGrowing

A cache fills, and then a round adds nothing; a leak adds something in every round.
"""

import gc
import os
import warnings
from typing import Any, Callable, Dict, List

from culeak import failures
from culeak.command import find_command
from culeak.recorder import Recorder, mark_name
from culeak.verdict import CannotJudge, Judge, Site, may_have_pools, site_name

#: Files with rules for allocations that are ignored; the pytest plugin adds those of its option.
suppressions = []  # type: List[str]

_calls = 0


class StillGrowing(AssertionError):
    """Every round left more GPU memory behind; the message names the lines, and what holds the memory."""


def repeat_until_stable(scenario: Callable[[], Any], at_most: int = 8) -> int:
    """Calls ``scenario`` until a round leaves no more GPU memory behind than the one before it, and returns the number of rounds.

    Raises StillGrowing if every round of ``at_most`` grew."""
    __tracebackhide__ = True
    if at_most < 2:
        raise ValueError("at_most must be 2 or more, since rounds are compared, not {!r}".format(at_most))
    recorder = Recorder.here()
    if recorder is None:
        warnings.warn("repeat_until_stable compares nothing, because this process is not recorded; run pytest with --culeak", stacklevel=3)
        scenario()
        return 1
    global _calls
    _calls += 1
    name = mark_name("repeat {}: {}".format(_calls, getattr(scenario, "__name__", "scenario")))
    judge = Judge(find_command(), suppressions)
    recorder.mark(name)
    before = {}  # type: Dict[Any, List[int]]
    grown = []  # type: List[Site]
    for number in range(1, at_most + 1):
        scenario()
        gc.collect()
        # Against no limit, a pool whose blocks are unknown would break none.
        verdict = judge.judge(os.getpid(), name, 0 if may_have_pools() else None)
        if verdict.unseen:
            raise CannotJudge(failures.unseen(verdict.unseen))
        if verdict.sampled:
            sampled = "rounds are compared by call site, and stacks were sampled, so what grows may have none; record without --sample"
            raise CannotJudge(failures.unseen([sampled]))
        parts = [part for site in verdict.sites for part in _parts(site)]
        now = {}  # type: Dict[Any, List[int]]
        for part in parts:
            blocks, size = now.get(_key(part), [0, 0])
            now[_key(part)] = [blocks + part.blocks, size + part.bytes]
        grown = [part for part in parts if any(more > less for more, less in zip(now[_key(part)], before.get(_key(part), [0, 0])))]
        if number > 1 and not grown:
            return number
        before = now
    raise StillGrowing(_message(scenario, at_most, grown, judge, name))


def _parts(site: Site) -> List[Site]:
    """The call site by its stacks, if all are known: a function that allocates for others is the call site of all of them."""
    if site.stacks_in_all > len(site.stacks):
        return [site]
    return [site._replace(bytes=stack.bytes, blocks=stack.blocks, stacks=[stack], stacks_in_all=1) for stack in site.stacks]


def _key(part: Site) -> Any:
    return site_name(part.label, part.place), tuple(part.stacks[0].frames) if part.stacks_in_all == 1 else None


def _message(scenario: Callable[[], Any], rounds: int, grown: List[Site], judge: Judge, since: str) -> str:
    code = getattr(scenario, "__code__", None)
    test = failures.Test(getattr(code, "co_filename", ""), getattr(scenario, "__name__", ""), os.getcwd())
    holders, unknown = {}, ""  # type: Dict[str, List[str]], str
    try:
        holders = judge.holders(os.getpid(), since)
    except CannotJudge as error:
        unknown = "\n\nWhat holds it is not known: {}".format(error)
    return failures.growing(test, rounds, grown, holders) + unknown
