"""When adapters start: at once if their framework is imported, else right after it is.

A finder in front of ``sys.meta_path`` waits for the modules. It finds nothing itself: the other finders do, and the loader that
they return calls the adapter after the module's own code has run.
"""

import os
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional

from culeak.adapters.blocks import replaced, say, undo
from culeak.recorder import Recorder


class Adapter:
    """A framework and what to do with it."""

    def __init__(self, name: str, starts: Dict[str, Callable[[ModuleType], None]]) -> None:
        """Each function is called once with the module of its name, after its import."""
        self.name = name
        self._starts = starts
        self._waiting_for = list(starts)

    def enable(self) -> None:
        """Does nothing without the preload library, or if it was called before."""
        loaded = []
        with _LOCK:
            if not self._waiting_for or Recorder.here() is None:
                return
            _tell_children(self.name)
            for name in list(self._waiting_for):
                module = sys.modules.get(name)
                if getattr(getattr(module, "__spec__", None), "_initializing", False):
                    say("{} is being imported: call culeak.adapters.enable() before that or after it".format(name))
                    continue
                self._waiting_for.remove(name)
                if module is None:
                    _WAITING.setdefault(name, []).append(self)
                    _install()
                else:
                    loaded.append((name, module))
        for name, module in loaded:
            self.start(name, module)

    def start(self, name: str, module: ModuleType) -> None:
        before = replaced()
        try:
            self._starts[name](module)
        except Exception as error:  # noqa: BLE001: the program must not notice
            undo(before)
            version = getattr(sys.modules.get(name.split(".")[0]), "__version__", "of this version")
            part = "the adapter for {}".format(self.name)
            if len(self._starts) > 1:
                part = "the part of {} that follows {}".format(part, name)
            say(
                "{} does not fit {} {} and stays off: {}: {}".format(
                    part, self.name, version, type(error).__name__, error
                )
            )


_LOCK = threading.Lock()
_WAITING: Dict[str, List[Adapter]] = {}


def _tell_children(name: str) -> None:
    """Child processes enable the same adapters when they start."""
    present = os.environ.get("CULEAK_ADAPTERS", "")
    if present.strip().lower() in ("1", "true", "yes", "on"):
        return
    names = [word.strip() for word in present.split(",") if word.strip() not in ("", "0")]
    if name not in names:
        os.environ["CULEAK_ADAPTERS"] = ",".join(names + [name])


def _install() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name not in _WAITING:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    try:
                        spec.loader.exec_module = _executing(spec.loader.exec_module, name)  # type: ignore[method-assign]
                    except AttributeError:
                        say("cannot wait for the import of {}: call culeak.adapters.enable() after it".format(name))
                return spec
        return None


def _executing(execute: Callable[[ModuleType], None], name: str) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        # A loader may have several modules.
        if module.__name__ == name:
            for adapter in _WAITING.pop(name, []):
                adapter.start(name, module)

    return exec_module
