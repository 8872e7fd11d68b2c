"""The messages of failing tests: how much was left, how much is allowed, and the stacks of the allocations, in the format of
pytest's short tracebacks."""

import linecache
import os
from typing import Dict, List, NamedTuple, Optional

from culeak.sizes import Size, show_blocks, show_size
from culeak.verdict import Frame, Site, Verdict, site_name

#: Call sites listed in one failure.
MOST_SITES = 10
#: Holders listed for a call site.
MOST_HOLDERS = 5


class Test(NamedTuple):
    """The test that a message is about: the file of its function, and the folder that paths are relative to."""

    file: str
    function: str
    folder: str


def leaked(test: Test, verdict: Verdict, limit: Size, holders: Optional[Dict[str, List[str]]] = None) -> str:
    """The test left too much behind. ``holders``: what holds the memory, by call site."""
    first = "GPU memory left behind: {} in {}, allowed {}".format(
        show_size(verdict.bytes), show_blocks(verdict.blocks), limit.text
    )
    lines = [first] + _sites(test, verdict.sites, holders or {})
    if verdict.suppressed_bytes:
        lines += ["", "Another {} is suppressed.".format(show_size(verdict.suppressed_bytes))]
    return "\n".join(lines)


def growing(test: Test, rounds: int, sites: List[Site], holders: Dict[str, List[str]]) -> str:
    """Every round of a scenario left more behind."""
    left = sum(site.bytes for site in sites), sum(site.blocks for site in sites)
    first = "GPU memory grows in every round: {} in {} after {} rounds".format(show_size(left[0]), show_blocks(left[1]), rounds)
    return "\n".join([first] + _sites(test, sites, holders))


def unseen(sentences: List[str]) -> str:
    """Something that the limits speak of was not seen."""
    return "No verdict on GPU memory: {}".format(". Also: ".join(sentences))


def needed(test: Test, peak: int, limit: Size, verdict: Optional[Verdict]) -> str:
    """The test exceeded its memory limit; ``verdict`` is about the time when it did."""
    lines = ["GPU memory needed: {} at once, allowed {}".format(show_size(peak), limit.text)]
    if verdict is not None:
        lines.append("When it exceeded the limit, it held {}:".format(show_size(verdict.bytes)))
        lines += _sites(test, verdict.sites)
    return "\n".join(lines)


def objects(test: Test, verdict: Verdict) -> str:
    """The test left too many objects without an address behind."""
    over = ["{}, allowed {:,}".format(_of_kind(found, kind), limit) for kind, (found, limit) in sorted(verdict.over.items())]
    lines = ["CUDA objects left behind: {}".format("; ".join(over))]
    blamed = [row for row in verdict.objects if row.to_blame]
    for row in blamed[:MOST_SITES]:
        lines += ["", "{} ({})".format(_of_kind(row.count, row.kind), row.api)]
        frames = _inner(test, row.frames)
        lines += [line for frame in frames for line in _frame(test, frame)] or ["    " + row.label]
    if len(blamed) > MOST_SITES:
        rest = sum(row.count for row in blamed[MOST_SITES:])
        lines += ["", "and {:,} more objects at {} more call sites".format(rest, len(blamed) - MOST_SITES)]
    if verdict.suppressed_objects:
        lines += ["", "Another {:,} suppressed.".format(verdict.suppressed_objects)]
    return "\n".join(lines)


def _of_kind(count: int, kind: str) -> str:
    """``3 stream objects``"""
    return "{:,} {} {}".format(count, kind, "object" if count == 1 else "objects")


def one_line(site: Site) -> str:
    """``48 MiB in 12 blocks  fill_cache  cache.py:31``"""
    words = ["{} in {}".format(show_size(site.bytes), show_blocks(site.blocks)), site.label]
    return "  ".join(words + ([site.place] if site.place else []))


def below(test: Test, site: Site) -> Site:
    """The same with the frames from the test's own function inwards; the frames outside it belong to pytest."""
    return site._replace(stacks=[stack._replace(frames=_inner(test, stack.frames)) for stack in site.stacks])


def _inner(test: Test, frames: List[Frame]) -> List[Frame]:
    for place, frame in enumerate(frames):
        # A qualified name, if the interpreter provides one.
        if frame.file == test.file and frame.function.split(".")[-1] == test.function:
            return frames[place:]
    return frames


def _sites(test: Test, sites: List[Site], holders: Optional[Dict[str, List[str]]] = None) -> List[str]:
    lines = []
    for site in sites[:MOST_SITES]:
        shown = below(test, site)
        lines += ["", "{} in {} ({})".format(show_size(site.bytes), show_blocks(site.blocks), site.what)]
        for stack in shown.stacks:
            if site.stacks_in_all > 1:
                lines.append("  {} in {} of them".format(show_size(stack.bytes), show_blocks(stack.blocks)))
            lines += [line for frame in stack.frames for line in _frame(test, frame)] or ["    " + site.label]
        if site.stacks_in_all > len(site.stacks):
            lines.append("  and {} other stacks with this call site".format(site.stacks_in_all - len(site.stacks)))
        held_by = (holders or {}).get(site_name(site.label, site.place), [])
        lines += ["  held by {}".format(holder) for holder in held_by[:MOST_HOLDERS]]
        if len(held_by) > MOST_HOLDERS:
            lines.append("  and by {} others".format(len(held_by) - MOST_HOLDERS))
    if len(sites) > MOST_SITES:
        rest = sum(site.bytes for site in sites[MOST_SITES:])
        lines += ["", "and {} more call sites with {}".format(len(sites) - MOST_SITES, show_size(rest))]
    return lines


def _frame(test: Test, frame: Frame) -> List[str]:
    if frame.file is None:
        return ["    {}".format(frame.function)]
    path = os.path.relpath(frame.file, test.folder) if os.path.isabs(frame.file) else frame.file
    shown = frame.file if path.startswith("..") else path
    place = shown if frame.line is None else "{}:{}".format(shown, frame.line)
    lines = ["    {}: in {}".format(place, frame.function)]
    source = linecache.getline(frame.file, frame.line or 0).strip()
    return lines + ["        " + source] if source else lines
