"""CuPy: the blocks that its memory pools hand out (12 to 14).

CuPy's own ``MemoryHook`` applies to the thread that registered it, and would miss blocks that another thread frees. So the
allocator is wrapped: a block of a pool comes in an object that reports its end, whichever thread drops it. Allocators without
a pool are not wrapped, since each of their blocks is an allocation of CUDA and recorded anyway.
"""

from types import ModuleType
from typing import Any, Callable, Optional

from culeak.adapters.blocks import Domain, replace
from culeak.adapters.imports import Adapter


def _start(cupy: ModuleType) -> None:
    cuda, memory = cupy.cuda, cupy.cuda.memory
    domain = Domain("CuPy")
    pooled, pointer_to = memory.PooledMemory, memory.MemoryPointer

    class Block(memory.UnownedMemory):  # type: ignore[misc,name-defined]
        """Memory of a pool; its owner is the pointer that the pool returned."""

        def __init__(self, block: Any, mem: Any) -> None:
            super().__init__(block.ptr, mem.size, block, mem.device_id)
            self.pooled = mem

        def free(self) -> None:
            """As that of a pool's memory."""
            domain.free(self.ptr)
            self.pooled.free()

        def __del__(self) -> None:
            domain.free(self.ptr)

    def wrapped(allocator: Optional[Callable[[int], Any]]) -> Optional[Callable[[int], Any]]:
        if allocator is None or getattr(allocator, "_culeak_original", None) is not None:
            return allocator

        def allocate(size: int) -> Any:
            block = allocator(size)
            mem = block.mem
            if type(mem) is not pooled or not domain.is_on or not block.ptr:
                return block
            try:
                own = Block(block, mem)
                domain.alloc(own.ptr, size)
                return pointer_to(own, 0)
            except Exception as error:  # noqa: BLE001
                domain.failed(error)
                return block

        allocate._culeak_original = allocator  # type: ignore[attr-defined]
        return allocate

    def sets(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_allocator(*args: Any, **kwargs: Any) -> Any:
            if args:
                args = (wrapped(args[0]),) + args[1:]
            elif "allocator" in kwargs:
                kwargs["allocator"] = wrapped(kwargs["allocator"])
            return original(*args, **kwargs)

        return set_allocator

    def gets(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_allocator() -> Any:
            found = original()
            return getattr(found, "_culeak_original", found)

        return get_allocator

    present = cuda.get_allocator()
    replace(cuda, "set_allocator", sets)
    replace(memory, "set_allocator", sets)
    replace(memory, "_set_thread_local_allocator", sets)
    replace(cuda, "get_allocator", gets)
    cuda.set_allocator(present)


ADAPTER = Adapter("cupy", {"cupy": _start})


def enable() -> None:
    """Records the blocks of memory pools that are allocated from now on, by every thread."""
    ADAPTER.enable()
