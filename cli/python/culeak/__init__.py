"""culeak from Python: marks and snapshots, in a process that is being recorded.

The preload library does the recording; ``culeak run`` or ``pytest --culeak`` loads it into the interpreter. Without it
these functions do nothing, so they may stay in a program.
"""

from typing import Optional

from culeak.recorder import Recorder

__all__ = ["is_recorded", "mark", "snapshot"]


def is_recorded() -> bool:
    """Whether this process runs under the preload library."""
    return Recorder.here() is not None


def mark(name: str) -> None:
    """Sets a mark: a named point in time for reports, ``culeak trend`` and ``culeak check --since``."""
    recorder: Optional[Recorder] = Recorder.here()
    if recorder is not None:
        recorder.mark(name)


def snapshot(name: str) -> None:
    """Writes a snapshot of this point in time beside the recording, for every command to read."""
    recorder: Optional[Recorder] = Recorder.here()
    if recorder is not None:
        recorder.snapshot(name)
