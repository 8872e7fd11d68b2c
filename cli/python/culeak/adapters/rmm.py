"""RMM: the blocks that pool, arena, binning and fixed-size resources hand out (Python package, 24 to 26.10).

A device's current resource, once it has such a resource in it, is put behind a ``CallbackMemoryResource`` whose functions
report. Allocations of C++ libraries go through it too, and take the interpreter's lock then. Programs that ask for the current
resource get their own. Resources without a pool are left alone: each of their blocks is an allocation of CUDA. C++ programs
use culeak_rmm.hpp instead.
"""

from types import ModuleType
from typing import Any, Callable

from culeak.adapters.blocks import Domain, replace
from culeak.adapters.imports import Adapter

_POOLS = ("PoolMemoryResource", "ArenaMemoryResource", "FixedSizeMemoryResource", "BinningMemoryResource")
#: More adaptors than anyone stacks.
_DEPTH = 64


def _has_pool(resource: Any) -> bool:
    for _ in range(_DEPTH):
        if resource is None:
            return False
        if any(base.__name__ in _POOLS for base in type(resource).__mro__):
            return True
        resource = getattr(resource, "upstream_mr", None)
    return False


def _start(rmm: ModuleType) -> None:
    mr = rmm.mr
    domain = Domain("RMM")

    class Recorded(mr.CallbackMemoryResource):  # type: ignore[misc,name-defined]
        def __init__(self, upstream: Any) -> None:
            allocate, deallocate = upstream.allocate, upstream.deallocate

            def allocates(size: int, stream: Any) -> int:
                address = allocate(size, stream)
                if address:
                    try:
                        domain.alloc(address, size)
                    except Exception as error:  # noqa: BLE001
                        domain.failed(error)
                return address  # type: ignore[no-any-return]

            def deallocates(address: int, size: int, stream: Any) -> None:
                # Before the upstream may give the address to another thread.
                domain.free(address)
                deallocate(address, size, stream)

            super().__init__(allocates, deallocates)
            self.upstream_mr = upstream

    def wrapped(resource: Any) -> Any:
        try:
            if isinstance(resource, Recorded) or not domain.is_on or not _has_pool(resource):
                return resource
            return Recorded(resource)
        except Exception as error:  # noqa: BLE001
            domain.failed(error)
            return resource

    def own(resource: Any) -> Any:
        return resource.upstream_mr if isinstance(resource, Recorded) else resource

    def sets(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_resource(*args: Any, **kwargs: Any) -> Any:
            if "mr" in kwargs:
                kwargs["mr"] = wrapped(kwargs["mr"])
            elif args:
                args = args[:-1] + (wrapped(args[-1]),)
            return original(*args, **kwargs)

        return set_resource

    def gets(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_resource(*args: Any, **kwargs: Any) -> Any:
            return own(original(*args, **kwargs))

        return get_resource

    set_per_device, get_per_device = mr.set_per_device_resource, mr.get_per_device_resource

    def reinitializes(original: Callable[..., Any]) -> Callable[..., Any]:
        def reinitialize(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                devices = kwargs.get("devices", args[4] if len(args) > 4 else 0)
                for device in [devices] if isinstance(devices, int) else devices:
                    set_per_device(device, wrapped(get_per_device(device)))
            except Exception as error:  # noqa: BLE001
                domain.failed(error)
            return result

        return reinitialize

    implementation = rmm.pylibrmm.memory_resource
    for module in (mr, implementation):
        for name in ("set_per_device_resource", "set_current_device_resource"):
            replace(module, name, sets)
        for name in ("get_per_device_resource", "get_current_device_resource"):
            replace(module, name, gets)
    replace(rmm, "reinitialize", reinitializes)


ADAPTER = Adapter("rmm", {"rmm": _start})


def enable() -> None:
    """Records the blocks of pool resources that the program sets from now on."""
    ADAPTER.enable()
