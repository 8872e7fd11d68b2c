"""PyTorch: blocks of pluggable allocators, and the pools that tensors were allocated in (2.0 to 2.15).

``CUDAPluggableAllocator`` takes two C functions. They are replaced by ones of the preload library that call them and record;
no Python runs in between, because PyTorch calls them under its own locks. The domain is the library that has the functions.

A tensor in a ``torch.cuda.MemPool`` is recorded like every other tensor. What the adapter adds is the pool: a phase for the
time inside ``torch.cuda.use_mem_pool``, so that ``culeak report --view phases`` tells the pools apart.
"""

import ctypes
import os
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Callable, Iterator

import culeak
from culeak.adapters.blocks import forward, replace, say
from culeak.adapters.dl_info import DlInfo
from culeak.adapters.imports import Adapter


def library_of(function: int) -> str:
    """The name of the library with this function; that of PyTorch's class if it is in none."""
    find = ctypes.CDLL(None).dladdr
    find.argtypes = [ctypes.c_void_p, ctypes.POINTER(DlInfo)]
    found = DlInfo()
    if not find(function, ctypes.byref(found)) or not found.file:
        return "CUDAPluggableAllocator"
    return os.path.basename(os.fsdecode(found.file))


def _start(torch: ModuleType) -> None:
    def forwards(original: Callable[..., Any]) -> Callable[..., Any]:
        def _cuda_customAllocator(alloc: int, free: int) -> Any:
            try:
                pair = forward(library_of(alloc), alloc, free)
                if pair is None:
                    say("the allocator of {} is not recorded: there are 8 others already".format(library_of(alloc)))
            except Exception as error:  # noqa: BLE001
                pair = None
                say("a pluggable allocator is not recorded: {}: {}".format(type(error).__name__, error))
            return original(*(pair or (alloc, free)))

        return _cuda_customAllocator

    def names(original: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def use_mem_pool(pool: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            name = "MemPool {}".format(".".join(str(part) for part in getattr(pool, "id", ())))
            with culeak.phase(name), original(pool, *args, **kwargs) as entered:
                yield entered

        return use_mem_pool

    # A build without CUDA has none of these.
    if hasattr(torch._C, "_cuda_customAllocator"):
        replace(torch._C, "_cuda_customAllocator", forwards)
    if hasattr(torch.cuda, "use_mem_pool"):
        replace(torch.cuda.memory, "use_mem_pool", names)
        torch.cuda.use_mem_pool = torch.cuda.memory.use_mem_pool


ADAPTER = Adapter("torch", {"torch": _start})


def enable() -> None:
    """Records the blocks of pluggable allocators that are made from now on, and names the pools of tensors."""
    ADAPTER.enable()
