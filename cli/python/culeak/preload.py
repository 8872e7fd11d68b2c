"""Puts the preload library in front of a Python program that is running already: by starting it anew.

A library can only be preloaded when a process begins, so the process replaces itself by one of the same command line
and id. That must happen before it has done anything; see `pytest_plugin` for the moment.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Mapping, Optional

#: The process that has started itself anew; its children, workers among them, inherit the recording from it.
STARTED = "CULEAK_PYTEST"
#: A folder for recordings that goes when that process ends.
TEMPORARY = "CULEAK_PYTEST_TEMPORARY"


class CannotPreload(Exception):
    """Why this process cannot be recorded, and what to do."""


def is_ready() -> bool:
    """Whether this process is recorded in such a way that tests can be told apart."""
    from culeak.recorder import Recorder

    return Recorder.here() is not None and os.environ.get("CULEAK_INTERVALS", "0") not in ("", "0")


def start_anew(command: str, recordings: Optional[str]) -> None:
    """Replaces this process by itself under the preload library of ``command``; does not return.

    ``recordings``: the folder to keep the recordings in; None for a temporary one."""
    if os.environ.get(STARTED) == str(os.getpid()):
        raise CannotPreload(
            "the interpreter {} does not load the preload library; `culeak doctor` may know why".format(sys.executable)
        )
    line = _command_line()
    if not _is_only_pytest(line):
        raise CannotPreload(
            "pytest was started from within another program, which cannot be started anew; start it with\n"
            "  LD_PRELOAD=$(culeak shim-path) CULEAK_INTERVALS=1 {}".format(" ".join(line))
        )
    environment = changed(os.environ, _library(command), recordings)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable] + line[1:], environment)


def changed(present: Mapping[str, str], library: str, recordings: Optional[str]) -> Dict[str, str]:
    """The environment to start in: the library in front of others, and where the recordings go."""
    environment = dict(present)
    preloaded = present.get("LD_PRELOAD", "").replace(":", " ").split()
    temporary = None
    # Somebody who records already (`culeak run -- pytest`) has a folder and wants it used.
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
    """The environment for programs of ours, which nobody wants to record."""
    return {name: value for name, value in present.items() if name != "LD_PRELOAD"}


def _library(command: str) -> str:
    asked = subprocess.run([command, "shim-path"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if asked.returncode != 0:
        raise CannotPreload(asked.stderr.strip() or "{} shim-path failed".format(command))
    return asked.stdout.rstrip("\n")


def _command_line() -> List[str]:
    """As the kernel knows it: what was typed, the interpreter's own options included."""
    return [os.fsdecode(word) for word in Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]]


def _is_only_pytest(line: List[str]) -> bool:
    """Whether the process is pytest's (or that of a tool that runs it whole): nothing has happened in it before."""
    words = iter(line[1:])
    for word in words:
        if not word.startswith("-"):
            script = Path(word)
            at_home = script.name == "__main__.py" and script.parent.name == "pytest"
            return at_home or script.name in ("pytest", "py.test", "coverage")
        # The interpreter's options of one letter, the first that takes a value ends the word: -Bm pytest, -mpytest.
        option = re.match("-([^-cmWX]*)([cmWX])(.*)", word)
        if option is None:
            continue
        value = option.group(3) or next(words, "")
        if option.group(2) in "cm":
            return option.group(2) == "m" and value in ("pytest", "coverage")
    return False
