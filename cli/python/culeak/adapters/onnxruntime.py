"""ONNX Runtime: values on the device that Python holds (``OrtValue``; written for 1.31).

The arena is compiled in, and its symbols are local: what a session keeps in it, weights and activations, cannot be told apart
from outside. The values that a program gets from it can, and those are what a program leaks. A value counts as freed when its
last Python object is gone.
"""

import threading
from types import ModuleType
from typing import Any, Callable, Dict

from culeak.adapters.blocks import MARK, Domain, replace
from culeak.adapters.imports import Adapter


def _start(onnxruntime: ModuleType) -> None:
    domain = Domain("ONNX Runtime")
    value_class = onnxruntime.OrtValue
    holders: Dict[int, int] = {}
    lock = threading.RLock()

    def makes(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            try:
                if domain.is_on and self.device_name() == "cuda" and self.is_tensor() and self.has_value():
                    address, size = self.data_ptr(), self.tensor_size_in_bytes()
                    if address and size:
                        with lock:
                            key = address | MARK
                            holders[key] = holders.get(key, 0) + 1
                            self._culeak = key
                            if holders[key] == 1:
                                domain.alloc(address, size)
            except Exception as error:  # noqa: BLE001
                domain.failed(error)

        return __init__

    before = getattr(value_class, "__del__", None)

    def __del__(self: Any) -> None:
        if before is not None:
            before(self)
        key = self.__dict__.get("_culeak")
        if key is None:
            return
        with lock:
            holders[key] -= 1
            if not holders[key]:
                del holders[key]
                domain.free(key & ~MARK)

    # An older version has no sizes, and is left alone.
    getattr(value_class, "tensor_size_in_bytes")
    replace(value_class, "__init__", makes)
    value_class.__del__ = __del__


ADAPTER = Adapter("onnxruntime", {"onnxruntime": _start})


def enable() -> None:
    """Records values on the device that are made from now on."""
    ADAPTER.enable()
