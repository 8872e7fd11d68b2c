"""Loads the preload library into a Python program that is already running, by restarting it.

A library can only be preloaded when a process starts, so the process replaces itself by one with the same command line
and pid. That must happen before it has done anything; see `pytest_plugin` for the time.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Mapping, Optional

#: The pid of the restarted process; its children, workers among them, inherit the recording from it.
STARTED = "CULEAK_PYTEST"
#: A folder for recordings that is removed when that process ends.
TEMPORARY = "CULEAK_PYTEST_TEMPORARY"


class CannotPreload(Exception):
    """Why this process cannot be recorded, and what to do."""


def is_ready() -> bool:
    """Whether this process is recorded with intervals, so that the memory of each test can be measured."""
    from culeak.recorder import Recorder

    return Recorder.here() is not None and os.environ.get("CULEAK_INTERVALS", "0") not in ("", "0")


def restart(command: str, recordings: Optional[str], why: bool = False) -> None:
    """Replaces this process by itself under the preload library of ``command``; does not return.

    ``recordings``: the folder to keep the recordings in; None for a temporary one. ``why``: the command may read this process's
    memory, which some kernels permit to parents only."""
    if os.environ.get(STARTED) == str(os.getpid()):
        raise CannotPreload(
            "the interpreter {} does not load the preload library; run `culeak doctor` to find out why".format(sys.executable)
        )
    line = _command_line()
    if not _is_only_pytest(line):
        raise CannotPreload(
            "pytest was started from within another program, which cannot be restarted; start that program with\n"
            "  LD_PRELOAD=$(culeak shim-path) CULEAK_INTERVALS=1 {}".format(" ".join(line))
        )
    environment = changed(os.environ, _library(command), recordings)
    if why:
        environment["CULEAK_WHY"] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable] + line[1:], environment)


def changed(present: Mapping[str, str], library: str, recordings: Optional[str]) -> Dict[str, str]:
    """The environment to restart in: the library before other preloaded ones, and the path of the recordings."""
    environment = dict(present)
    preloaded = present.get("LD_PRELOAD", "").replace(":", " ").split()
    temporary = None
    # An outer recorder (`culeak run -- pytest`) has set the output and expects recordings there.
    if recordings is not None or library not in preloaded or not present.get("CULEAK_OUTPUT"):
        if recordings is None:
            recordings = temporary = tempfile.mkdtemp(prefix="culeak-pytest-")
        folder = Path(recordings).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        environment["CULEAK_OUTPUT"] = str(folder).replace("%", "%%") + "/%e.%h.%p.culeak"
    environment.update(
        {
            "LD_PRELOAD": ":".join([library] + [name for name in preloaded if name != library]),
            "CULEAK_INTERVALS": "1",
            "CULEAK_QUIET": "1",
            STARTED: str(os.getpid()),
            TEMPORARY: temporary or "",
        }
    )
    for name in ("CULEAK_DISABLE", "CULEAK_ONLY", "CULEAK_PARENT"):
        environment.pop(name, None)
    return environment


def without_preload(present: Mapping[str, str]) -> Dict[str, str]:
    """The environment for our own programs, which are not to be recorded."""
    return {name: value for name, value in present.items() if name != "LD_PRELOAD"}


def _library(command: str) -> str:
    result = subprocess.run([command, "shim-path"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if result.returncode != 0:
        raise CannotPreload(result.stderr.strip() or "{} shim-path failed".format(command))
    return result.stdout.rstrip("\n")


def _command_line() -> List[str]:
    """As the kernel has it: what was typed, the interpreter's own options included."""
    return [os.fsdecode(word) for word in Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]]


def _is_only_pytest(line: List[str]) -> bool:
    """Whether pytest (or a tool that only runs it) is all that this process runs, so that nothing has happened in it yet."""
    words = iter(line[1:])
    for word in words:
        if not word.startswith("-"):
            script = Path(word)
            at_home = script.name == "__main__.py" and script.parent.name == "pytest"
            return at_home or script.name in ("pytest", "py.test", "coverage")
        # Short options of the interpreter; the first that takes a value ends the word: -Bm pytest, -mpytest.
        option = re.match("-([^-cmWX]*)([cmWX])(.*)", word)
        if option is None:
            continue
        value = option.group(3) or next(words, "")
        if option.group(2) in "cm":
            return option.group(2) == "m" and value in ("pytest", "coverage")
    return False
