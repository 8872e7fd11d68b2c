"""culeak from Python: names for moments, and snapshots of them, in a process that is being recorded.

Nothing here records: the preload library does, which ``culeak run`` or ``pytest --culeak`` puts in front of the
interpreter. Without it these functions do nothing, so they may stay in a program.
"""

from typing import Optional

from culeak.recorder import Recorder

__all__ = ["is_recorded", "mark", "snapshot"]


def is_recorded() -> bool:
    """Whether this process runs under the preload library."""
    return Recorder.here() is not None


def mark(name: str) -> None:
    """Gives this moment a name, which reports, ``culeak trend`` and ``culeak check --since`` know it by."""
    recorder: Optional[Recorder] = Recorder.here()
    if recorder is not None:
        recorder.mark(name)


def snapshot(name: str) -> None:
    """Keeps a snapshot of this moment beside the recording, for every command to read."""
    recorder: Optional[Recorder] = Recorder.here()
    if recorder is not None:
        recorder.snapshot(name)
