"""vLLM (v1): the blocks of ``BlockPool`` that requests hold, from 0.8 to 0.33.

A block is a number, and its pages lie in the tensors of all layers; they are recorded as one block of their total size, under
a number instead of an address. A block counts as allocated while its reference count is not 0, so the cached prefixes of
requests that have ended are free, as they are to vLLM. If workers run in processes of their own, the blocks are recorded in
the process of the scheduler, which has no device memory, with the bytes of one worker.
"""

import sys
import weakref
from types import ModuleType
from typing import Any, Callable, List

from culeak.adapters.blocks import Domain, replace
from culeak.adapters.imports import Adapter


class _Pool:
    """What is known of a block pool."""

    def __init__(self, domain: Domain, config: Any) -> None:
        self.domain = domain
        self.start = domain.range()
        self.page = max(1, block_bytes(config))

    def took(self, blocks: List[Any]) -> None:
        start, page = self.start, self.page
        self.domain.alloc_pages([start + block.block_id * page for block in blocks], page)

    def gave(self, blocks: List[Any]) -> None:
        start, page = self.start, self.page
        self.domain.free_pages([start + block.block_id * page for block in blocks])

    def gone(self) -> None:
        self.domain.free_range(self.start)


def block_bytes(config: Any) -> int:
    """Bytes of one block in all layers, from vLLM's ``KVCacheConfig``."""
    tensors = [tensor for tensor in config.kv_cache_tensors if not getattr(tensor, "host_resident", False)]
    sizes = [tensor.size for tensor in tensors]
    # Where tensors have offsets, they lie in one allocation, whose size each of them has.
    is_shared = bool(tensors) and hasattr(tensors[0], "offset")
    total = max(sizes, default=0) if is_shared else sum(sizes)
    return int(total // config.num_blocks)


def _start(manager: ModuleType) -> None:
    block_pool = sys.modules["vllm.v1.core.block_pool"]
    domain = Domain("vLLM")
    def managers(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            try:
                config = kwargs.get("kv_cache_config", args[0] if args else None)
                # Other pools, of blocks in host memory for example, have no manager and are not recorded.
                self.block_pool._culeak = known = _Pool(domain, config)
                weakref.finalize(self.block_pool, known.gone).atexit = False
            except Exception as error:  # noqa: BLE001
                domain.failed(error)

        return __init__

    def gets(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_new_blocks(self: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = original(self, *args, **kwargs)
            try:
                if "_culeak" in self.__dict__:
                    self._culeak.took(blocks)
            except Exception as error:  # noqa: BLE001
                domain.failed(error)
            return blocks

        return get_new_blocks

    def touches(original: Callable[..., Any]) -> Callable[..., Any]:
        def touch(self: Any, blocks: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.__dict__.get("_culeak")
            unused: List[Any] = []
            if known is not None:
                try:
                    # Until 0.11 they come as one list per group.
                    groups = blocks if blocks and isinstance(blocks[0], (list, tuple)) else [blocks]
                    unused = [block for group in groups for block in group if block.ref_cnt == 0 and not block.is_null]
                except Exception as error:  # noqa: BLE001
                    domain.failed(error)
            result = original(self, blocks, *args, **kwargs)
            if known is not None and unused:
                try:
                    known.took(unused)
                except Exception as error:  # noqa: BLE001
                    domain.failed(error)
            return result

        return touch

    def frees(original: Callable[..., Any]) -> Callable[..., Any]:
        def free_blocks(self: Any, ordered_blocks: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.__dict__.get("_culeak")
            if known is None:
                return original(self, ordered_blocks, *args, **kwargs)
            # It may be an iterator, which can be read only once.
            blocks = ordered_blocks if isinstance(ordered_blocks, list) else list(ordered_blocks)
            result = original(self, blocks, *args, **kwargs)
            try:
                # Blocks of another pool go on to that pool's own function.
                known.gave([b for b in blocks if b.ref_cnt == 0 and getattr(b, "pool", self) in (self, None)])
            except Exception as error:  # noqa: BLE001
                domain.failed(error)
            return result

        return free_blocks

    pool_class = block_pool.BlockPool
    replace(manager.KVCacheManager, "__init__", managers)
    replace(pool_class, "get_new_blocks", gets)
    replace(pool_class, "touch", touches)
    replace(pool_class, "free_blocks", frees)
    if hasattr(pool_class, "unpin_blocks"):
        replace(pool_class, "unpin_blocks", frees)


ADAPTER = Adapter("vllm", "vllm.v1.core.kv_cache_manager", _start)


def enable() -> None:
    """Records the KV cache blocks of engines that are created from now on, in this process and its children."""
    ADAPTER.enable()
