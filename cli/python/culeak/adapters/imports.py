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

    def __init__(self, name: str, module: str, start: Callable[[ModuleType], None]) -> None:
        """``start`` is called once with the module of this name, after its import."""
        self.name = name
        self._module = module
        self._start = start
        self._is_enabled = False

    def enable(self) -> None:
        """Does nothing without the preload library, or if it was called before."""
        with _LOCK:
            if self._is_enabled or Recorder.here() is None:
                return
            self._is_enabled = True
            _tell_children(self.name)
            loaded = sys.modules.get(self._module)
            if loaded is None:
                _WAITING.setdefault(self._module, []).append(self)
                _install()
                return
        if getattr(getattr(loaded, "__spec__", None), "_initializing", False):
            self._is_enabled = False
            say("{} is being imported: call culeak.adapters.enable() before that or after it".format(self._module))
        else:
            self.start(loaded)

    def start(self, module: ModuleType) -> None:
        before = replaced()
        try:
            self._start(module)
        except Exception as error:  # noqa: BLE001: the program must not notice
            undo(before)
            version = getattr(sys.modules.get(self._module.split(".")[0]), "__version__", "of this version")
            say(
                "the adapter for {} does not fit {} {} and stays off: {}: {}".format(
                    self.name, self.name, version, type(error).__name__, error
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
                adapter.start(module)

    return exec_module
