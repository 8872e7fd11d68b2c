"""Asks the command for its verdict on one test: what was allocated since the test began and is still live, by call site.
Symbols, levels and suppressions are the command's business; nothing of that is repeated here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from culeak.limits import ObjectLimits
from culeak.preload import without_preload

#: Memory of GPUs, both the driver's and the frameworks' blocks in it; not page-locked host memory.
KINDS = "device pitched array mipmapped async physical graph managed tensor buffer block".split()
#: Frameworks that keep memory in pools. Which part of a pool is in use is known only if its blocks are recorded.
POOLING = ("cupy", "jaxlib", "onnxruntime", "rmm", "tensorflow")
#: More than any machine has: the command then lists call sites and finds no leak.
NO_LIMIT = 1 << 62


class CannotJudge(Exception):
    """The command gave no verdict; the message contains its own."""


def may_have_pools() -> bool:
    """Whether this process has imported a framework with pools."""
    return any(name in sys.modules for name in POOLING)


class Frame(NamedTuple):
    """A line of the user's code in the stack of an allocation."""

    function: str
    file: Optional[str]
    line: Optional[int]


class Stack(NamedTuple):
    """One stack of a call site, and what was allocated with it."""

    bytes: int
    blocks: int
    #: Outermost first, as in a traceback.
    frames: List[Frame]


class Site(NamedTuple):
    """The allocations of one line of code."""

    bytes: int
    blocks: int
    label: str
    #: ``cache.py:31``, if known.
    place: Optional[str]
    #: ``tensor, GPU 0``.
    what: str
    #: Largest first, at most five.
    stacks: List[Stack]
    stacks_in_all: int

    def as_json(self) -> Dict[str, Any]:
        stacks = [dict(stack._asdict(), frames=[frame._asdict() for frame in stack.frames]) for stack in self.stacks]
        return dict(self._asdict(), stacks=stacks)


class Objects(NamedTuple):
    """The objects of one kind that one line of code created."""

    kind: str
    count: int
    label: str
    #: ``server.py:31``, if known.
    place: Optional[str]
    #: The function that created most of them.
    api: str
    #: Outermost first.
    frames: List[Frame]
    #: There are more objects of this kind than allowed.
    to_blame: bool

    def as_json(self) -> Dict[str, Any]:
        return dict(self._asdict(), frames=[frame._asdict() for frame in self.frames])


class Verdict(NamedTuple):
    """The command's findings."""

    #: On memory alone.
    passed: bool
    bytes: int
    blocks: int
    suppressed_bytes: int
    #: What was not seen, in sentences; if there is anything, no test with limits passes.
    unseen: List[str]
    #: Largest first.
    sites: List[Site]
    #: Of the kinds that have a limit; those of kinds over their limit first.
    objects: List[Objects]
    #: Kinds over their limit: found and allowed.
    over: Dict[str, Tuple[int, int]]
    suppressed_objects: int
    #: Stacks were sampled, so call sites hold estimates, and some are missing.
    sampled: bool


class Judge:
    """The command, and its options for every test."""

    def __init__(self, command: str, suppressions: Sequence[str]) -> None:
        self._command = command
        self._options = [word for file in suppressions for word in ("--suppressions", file)]
        self._options += [word for kind in KINDS for word in ("--kind", kind)]

    def judge(self, source: Union[int, Path], since: str, limit: Optional[int] = None, objects: ObjectLimits = ()) -> Verdict:
        """The verdict on a process or on a snapshot of one. ``limit`` in bytes; None: no limit. ``objects``: by kind."""
        most = NO_LIMIT if limit is None else limit
        words = [self._command, "check", str(source), "--since=" + since, "--allow", str(most), "--json"]
        words += [word for kind, most in objects for word in ("--allow", "{}={}".format(kind, most))]
        result = subprocess.run(
            words + self._options,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=without_preload(os.environ),
        )
        try:
            return _verdict(json.loads(result.stdout.decode("utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            message = result.stderr.decode("utf-8", "replace").strip() or repr(error)
            raise CannotJudge("culeak check gave no verdict: {}".format(message)) from error


    def holders(self, pid: int, since: str, within: str = "1m") -> Dict[str, List[str]]:
        """What holds the memory that was allocated since a mark, by the name and place of the call site. ``within``: a limit of time."""
        words = [self._command, "why", str(pid), "--since=" + since, "--limit=" + within, "--json"]
        words += [word for kind in KINDS for word in ("--kind", kind)]
        result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=without_preload(os.environ))
        try:
            return _holders(json.loads(result.stdout.decode("utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            message = result.stderr.decode("utf-8", "replace").strip() or repr(error)
            raise CannotJudge("culeak why gave no answer: {}".format(message)) from error


#: What a class means, for memory that no variable holds.
CLASSES = {
    "cycle": "an uncollected cycle, ",
    "native_holder": "native code, through ",
    "over_counted": "a reference that was never released, to ",
    "lost": "nothing: no pointer to it is left",
}


def _holders(found: Dict[str, Any]) -> Dict[str, List[str]]:
    by_site = {}  # type: Dict[str, List[str]]
    for origin in found["origins"]:
        name = CLASSES.get(origin["class"], "") + (origin["origin"] or "")
        if origin["class"] == "cycle":
            name = name.replace("cycle, cycle ", "cycle ")
        if origin["origin_type"]:
            name += " ({})".format(origin["origin_type"])
        for holder in origin["holders"]:
            text = "{}: {}".format(name, holder["path"]) if holder["path"] else name
            by_site.setdefault(site_name(holder["label"], holder["place"]), []).append(text)
    return by_site


def site_name(label: str, place: Optional[str]) -> str:
    return "{} {}".format(label, place or "")


def _verdict(found: Dict[str, Any]) -> Verdict:
    of_objects = [breach for breach in found["breaches"] if breach["reason"] == "total" and breach["measure"] == "objects"]
    return Verdict(
        passed=len(of_objects) == len(found["breaches"]),
        bytes=found["judged"]["bytes"],
        blocks=found["judged"]["count"],
        suppressed_bytes=found["suppressed"]["bytes"],
        unseen=["{}; {}".format(unseen["what"], unseen["next"]) for unseen in found["unseen"]],
        sites=sorted((_site(row) for row in found["rows"]), key=lambda site: -site.bytes),
        objects=[_objects(row) for row in found["objects"]],
        over={breach["of"]["kind"]: (breach["found"], breach["limit"]) for breach in of_objects},
        suppressed_objects=found["suppressed_objects"],
        sampled="sampling" in found,
    )


def _objects(row: Dict[str, Any]) -> Objects:
    stack, apis = row["stacks"][0], row["apis"]
    return Objects(
        kind=row["kind"],
        count=row["count"],
        label=row["label"],
        place=_place(stack),
        api=max(sorted(apis), key=lambda api: int(apis[api]["count"])),
        frames=_frames(stack["frames"]),
        to_blame=row["to_blame"],
    )


def _place(stack: Dict[str, Any]) -> Optional[str]:
    site = None if stack["site"] is None else stack["frames"][stack["site"]]
    if site is None or site["file"] is None:
        return None
    return Path(site["file"]).name + ("" if site["line"] is None else ":{}".format(site["line"]))


def _site(row: Dict[str, Any]) -> Site:
    largest = row["stacks"][0] if row["stacks"] else {"frames": [], "site": None}
    return Site(
        bytes=row["bytes"],
        blocks=row["count"],
        label=row["label"],
        place=_place(largest),
        what=", ".join(sorted(row["kinds"]) + sorted(row["devices"])),
        stacks=[Stack(stack["bytes"], stack["count"], _frames(stack["frames"])) for stack in row["stacks"]],
        stacks_in_all=row["stacks_in_all"],
    )


def _frames(frames: List[Dict[str, Any]]) -> List[Frame]:
    shown = [frame for frame in frames if frame["role"] == "user" and frame["function"] is not None]
    return [Frame(frame["function"], frame["file"], frame["line"]) for frame in reversed(shown)]
