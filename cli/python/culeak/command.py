"""Where the command ``culeak`` of this installation lies: a program that carries the preload library inside."""

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Iterator


class CommandMissing(Exception):
    """There is no command to run; the message says where it was sought."""


def find_command() -> str:
    """The path of the command: what the variable ``CULEAK`` names, else that of this installation, else of ``PATH``."""
    named = os.environ.get("CULEAK")
    if named:
        if not os.access(named, os.X_OK):
            raise CommandMissing("CULEAK={}: not a program; set it to the path of the command culeak, or unset it".format(named))
        return os.path.abspath(named)
    sought = [folder / "culeak" for folder in _folders()]
    for path in sought:
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("culeak")
    if found:
        return found
    raise CommandMissing(
        "the command culeak is neither in {} nor in PATH; reinstall the wheel, or name the command in CULEAK".format(
            ", ".join(str(path.parent) for path in sought)
        )
    )


def _folders() -> Iterator[Path]:
    """Where installers put commands: into the environment, into the user's own, beside the package (``--target``)."""
    yield Path(sysconfig.get_path("scripts"))
    yield Path(sysconfig.get_path("scripts", "posix_user"))
    yield Path(__file__).resolve().parent.parent / "bin"
