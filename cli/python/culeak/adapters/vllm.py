"""vLLM (v1): the blocks of ``BlockPool`` that requests hold, from 0.8 to 0.33.

A block is a number, and its pages lie in the tensors of all layers; they are recorded as one block of their total size, under
a number instead of an address. A block counts as allocated while its reference count is not 0, so the cached prefixes of
requests that have ended are free, as they are to vLLM. If workers run in processes of their own, the blocks are recorded in
the process of the scheduler, which has no device memory, with the bytes of one worker.

Besides, the pool's blocks are counted by state, and those of each request. What the pool hands out and takes back while the
manager works for a request counts for that request, since counting its blocks would take longer the more it has.
"""

import sys
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Set

from culeak.adapters.blocks import Domain, Pages, replace
from culeak.adapters.imports import Adapter


class _Request:
    """The blocks of a request that holds some, or did before it was preempted."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.count = 0
        self.is_waiting = False

    def report(self) -> None:
        waiting = self.count if self.is_waiting else 0
        self.pages.set(self.count - waiting, waiting=waiting)


class _Pool:
    """What is known of a block pool."""

    def __init__(self, domain: Domain, config: Any, pool: Any) -> None:
        self.domain = domain
        self.start = domain.range()
        self.page = max(1, block_bytes(config))
        self.pages = domain.pool(self.page)
        self.of = weakref.ref(pool)
        self.requests: Dict[str, _Request] = {}
        #: The request that the manager works for.
        self.current: Optional[str] = None
        #: Numbers of free blocks that the prefix cache has.
        self.cached: Set[int] = set()
        #: Numbers of blocks of requests that have ended, until a transfer or a step that writes them has ended.
        self.waiting: Set[int] = set()
        self.report()

    def took(self, blocks: List[Any]) -> None:
        start, page = self.start, self.page
        self.domain.alloc_pages([start + block.block_id * page for block in blocks], page)
        if self.cached:
            self.cached.difference_update([block.block_id for block in blocks])
        self.report()

    def gave(self, blocks: List[Any]) -> None:
        start, page = self.start, self.page
        self.domain.free_pages([start + block.block_id * page for block in blocks])
        self.cached.update([b.block_id for b in blocks if getattr(b, "block_hash", None) is not None])
        if self.waiting:
            self.waiting.difference_update([block.block_id for block in blocks])
        self.report()

    def report(self) -> None:
        pool = self.of()
        if pool is not None and self.domain.is_on:
            free, waiting, cached = pool.get_num_free_blocks(), len(self.waiting), len(self.cached)
            # One block is a placeholder.
            self.pages.set(max(0, len(pool.blocks) - 1 - free - waiting), cached, waiting, max(0, free - cached))

    def changed(self, count: int) -> None:
        """The current request has so many more blocks."""
        if self.current is None or not count:
            return
        known = self.requests.get(self.current)
        if known is None:
            known = self.requests[self.current] = _Request(self.pages.owner(self.current))
        known.count = max(0, known.count + count)
        known.report()

    def waits(self, blocks: List[Any]) -> None:
        """Blocks of a request that has ended, which are not given back yet. Those of other requests too are live."""
        self.waiting.update([block.block_id for block in blocks if block.ref_cnt == 1 and not block.is_null])
        self.report()

    def released(self, request: Any) -> None:
        """A request has no blocks any more: it has ended, or was preempted."""
        known = self.requests.get(request.request_id)
        if known is not None:
            known.count = 0
            known.report()
            if request.is_finished():
                self.ended(request)

    def ended(self, request: Any, blocks: Any = ()) -> None:
        known = self.requests.get(request.request_id)
        if known is None:
            return
        known.pages.end()
        if not known.count:
            del self.requests[request.request_id]
        elif not known.is_waiting:
            known.is_waiting = True
            known.report()
            self.waits([block for group in blocks for block in group])

    def gone(self) -> None:
        self.domain.free_range(self.start)
        self.pages.end()


def block_bytes(config: Any) -> int:
    """Bytes of one block in all layers, from vLLM's ``KVCacheConfig``."""
    tensors = [tensor for tensor in config.kv_cache_tensors if not getattr(tensor, "host_resident", False)]
    sizes = [tensor.size for tensor in tensors]
    # Where tensors have offsets, they lie in one allocation, whose size each of them has.
    is_shared = bool(tensors) and hasattr(tensors[0], "offset")
    total = max(sizes, default=0) if is_shared else sum(sizes)
    return int(total // config.num_blocks)


def _known(owner: Any) -> Optional[_Pool]:
    """Of a pool, or of a manager, which has a pool in all known versions."""
    known: Optional[_Pool] = getattr(getattr(owner, "block_pool", owner), "__dict__", {}).get("_culeak")
    return known


def _start(manager: ModuleType) -> None:
    block_pool = sys.modules["vllm.v1.core.block_pool"]
    domain = Domain("vLLM")

    def managers(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            try:
                config = kwargs.get("kv_cache_config", args[0] if args else None)
                # Other pools, of blocks in host memory for example, have no manager and are not recorded.
                self.block_pool._culeak = known = _Pool(domain, config, self.block_pool)
                weakref.finalize(self.block_pool, known.gone).atexit = False
            except Exception as error:  # noqa: BLE001
                domain.failed(error)

        return __init__

    def gets(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_new_blocks(self: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = original(self, *args, **kwargs)
            try:
                known = _known(self)
                if known is not None:
                    known.took(blocks)
                    known.changed(len(blocks))
            except Exception as error:  # noqa: BLE001
                domain.failed(error)
            return blocks

        return get_new_blocks

    def touches(original: Callable[..., Any]) -> Callable[..., Any]:
        def touch(self: Any, blocks: Any, *args: Any, **kwargs: Any) -> Any:
            known = _known(self)
            touched: List[Any] = []
            unused: List[Any] = []
            if known is not None:
                try:
                    # Until 0.11 they come as one list per group.
                    groups = blocks if blocks and isinstance(blocks[0], (list, tuple)) else [blocks]
                    touched = [block for group in groups for block in group if not block.is_null]
                    unused = [block for block in touched if block.ref_cnt == 0]
                except Exception as error:  # noqa: BLE001
                    domain.failed(error)
            result = original(self, blocks, *args, **kwargs)
            if known is not None and touched:
                try:
                    # Another request uses blocks that are still sent: they are live.
                    known.waiting.difference_update([block.block_id for block in touched])
                    if unused:
                        known.took(unused)
                    known.changed(len(touched))
                except Exception as error:  # noqa: BLE001
                    domain.failed(error)
            return result

        return touch

    def frees(original: Callable[..., Any]) -> Callable[..., Any]:
        def free_blocks(self: Any, ordered_blocks: Any, *args: Any, **kwargs: Any) -> Any:
            known = _known(self)
            if known is None:
                return original(self, ordered_blocks, *args, **kwargs)
            # It may be an iterator, which can be read only once.
            blocks = ordered_blocks if isinstance(ordered_blocks, list) else list(ordered_blocks)
            result = original(self, blocks, *args, **kwargs)
            try:
                # Blocks of another pool go on to that pool's own function.
                own = [b for b in blocks if not b.is_null and getattr(b, "pool", self) in (self, None)]
                known.gave([block for block in own if block.ref_cnt == 0])
                known.changed(-len(own))
            except Exception as error:  # noqa: BLE001
                domain.failed(error)
            return result

        return free_blocks

    def forgets(original: Callable[..., Any]) -> Callable[..., Any]:
        """The prefix cache has no blocks any more, or not these."""

        def evict(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            try:
                known = _known(self)
                if known is not None and known.cached:
                    known.cached = {number for number in known.cached if self.blocks[number].block_hash is not None}
                    known.report()
            except Exception as error:  # noqa: BLE001
                domain.failed(error)
            return result

        return evict

    def works(original: Callable[..., Any]) -> Callable[..., Any]:
        """For a request: its blocks change."""

        def work(self: Any, *args: Any, **kwargs: Any) -> Any:
            known = _known(self)
            if known is None:
                return original(self, *args, **kwargs)
            request = args[0] if args else kwargs.get("request", kwargs.get("request_id"))
            before, known.current = known.current, getattr(request, "request_id", request)
            try:
                return original(self, *args, **kwargs)
            finally:
                known.current = before

        return work

    def releases(original: Callable[..., Any]) -> Callable[..., Any]:
        def release(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, request, *args, **kwargs)
            try:
                known = _known(self)
                if known is not None:
                    # They are given back later, after the step that may still write them.
                    if isinstance(result, list):
                        known.waits(result)
                    known.released(request)
            except Exception as error:  # noqa: BLE001
                domain.failed(error)
            return result

        return release

    pool_class, manager_class = block_pool.BlockPool, manager.KVCacheManager
    replace(manager_class, "__init__", managers)
    replace(pool_class, "get_new_blocks", gets)
    replace(pool_class, "touch", touches)
    replace(pool_class, "free_blocks", frees)
    replace(manager_class, "allocate_slots", works)
    replace(manager_class, "free", releases)
    for owner, name, made in [
        (pool_class, "unpin_blocks", frees),
        (pool_class, "reset_prefix_cache", forgets),
        (pool_class, "evict_blocks", forgets),
        (manager_class, "remove_skipped_blocks", works),
        (manager_class, "pop_blocks_for_free", releases),
    ]:
        if hasattr(owner, name):
            replace(owner, name, made)


def _start_scheduler(scheduler: ModuleType) -> None:
    def frees(original: Callable[..., Any]) -> Callable[..., Any]:
        def _free_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, request, *args, **kwargs)
            manager = getattr(self, "kv_cache_manager", None)
            known = _known(manager)
            if known is not None:
                try:
                    # It holds blocks only if they are to be transferred first.
                    blocks_of = getattr(getattr(manager, "coordinator", None), "get_blocks", lambda _: ())
                    known.ended(request, blocks_of(request.request_id))
                except Exception as error:  # noqa: BLE001
                    known.domain.failed(error)
            return result

        return _free_request

    replace(scheduler.Scheduler, "_free_request", frees)


_MODULES = {"vllm.v1.core.kv_cache_manager": _start, "vllm.v1.core.sched.scheduler": _start_scheduler}
ADAPTER = Adapter("vllm", _MODULES)


def enable() -> None:
    """Records the KV cache blocks of engines that are created from now on, in this process and its children."""
    ADAPTER.enable()
