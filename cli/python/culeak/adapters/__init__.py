"""Adapters: the blocks of frameworks' own pools, recorded with their stacks.

    import culeak.adapters
    culeak.adapters.enable()                     # all that this process imports, now or later
    culeak.adapters.enable("vllm", "cupy")       # only these
    culeak.adapters.vllm.enable()                # the same, for one

``CULEAK_ADAPTERS=1``, or a list of names, does so in every Python process without a change of the program. The calls set the
variable for child processes too, since vLLM and SGLang allocate in those.

Each adapter replaces a few methods of the framework by ones that call the original, then report to the preload library what
they did. Without the preload library nothing is replaced. If an adapter meets something unexpected, the program goes on as
before: the adapter says so once on stderr, takes back what it has reported, and stops. Deliberately absent: an import of any
framework.
"""

import os
from typing import Dict

from culeak.adapters import cupy, imports, onnxruntime, rmm, sglang, tensorflow, torch, vllm
from culeak.adapters.blocks import say
from culeak.recorder import Recorder

__all__ = ["cupy", "enable", "onnxruntime", "rmm", "sglang", "tensorflow", "torch", "vllm"]

#: Names of adapters, separated by commas; or a switch.
VARIABLE = "CULEAK_ADAPTERS"

_ALL: Dict[str, imports.Adapter] = {
    "cupy": cupy.ADAPTER,
    "onnxruntime": onnxruntime.ADAPTER,
    "rmm": rmm.ADAPTER,
    "sglang": sglang.ADAPTER,
    "tensorflow": tensorflow.ADAPTER,
    "torch": torch.ADAPTER,
    "vllm": vllm.ADAPTER,
}


def enable(*names: str) -> None:
    """Switches on the adapters of these frameworks, or of all: at once for those already imported, on import for others."""
    for name in names:
        if name not in _ALL:
            raise ValueError("culeak.adapters has no adapter {!r}; there are {}".format(name, ", ".join(_ALL)))
    if Recorder.here() is None:
        return
    for name in names or _ALL:
        _ALL[name].enable()


def from_environment() -> None:
    """Switches on what the variable names. Called when an interpreter starts, before the program's first line."""
    value = os.environ.get(VARIABLE, "").strip()
    if not value or value.lower() in ("0", "false", "no", "off") or Recorder.here() is None:
        return
    if value.lower() in ("1", "true", "yes", "on"):
        return enable()
    for name in filter(None, (name.strip().lower() for name in value.split(","))):
        if name in _ALL:
            _ALL[name].enable()
        else:
            say("{}: no adapter is called {!r}; there are {}".format(VARIABLE, name, ", ".join(_ALL)))
