"""Finds the command ``culeak`` of this installation: a program with the preload library inside."""

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Iterator


class CommandMissing(Exception):
    """There is no command to run; the message lists where it was searched."""


def find_command() -> str:
    """The path of the command: the value of ``CULEAK``, else that of this installation, else the first in ``PATH``."""
    named = os.environ.get("CULEAK")
    if named:
        if not os.access(named, os.X_OK):
            raise CommandMissing("CULEAK={}: not an executable file; set it to the path of the command culeak, or unset it".format(named))
        return os.path.abspath(named)
    sought = [folder / "culeak" for folder in _folders()]
    for path in sought:
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("culeak")
    if found:
        return found
    raise CommandMissing(
        "the command culeak is neither in {} nor in PATH; reinstall the wheel, or set CULEAK to the path of the command".format(
            ", ".join(str(path.parent) for path in sought)
        )
    )


def _folders() -> Iterator[Path]:
    """Where installers put commands: into the environment, the user's scripts, or beside the package (``--target``)."""
    yield Path(sysconfig.get_path("scripts"))
    yield Path(sysconfig.get_path("scripts", "posix_user"))
    yield Path(__file__).resolve().parent.parent / "bin"
