"""SGLang: the pages of its token-to-KV pools that are not free, from 0.4 to 0.5.23.

The allocator keeps the numbers of free pages in a tensor on the device, and reading those would make the program wait. So an
allocation is recorded at once under serial numbers, one for each page; which pages these are, and which are freed, is copied
to the host in the order of the calls, and a thread of the adapter matches them when the copies have arrived. That thread calls
nothing of CUDA. A page that was freed a moment ago may therefore still be reported for as long as its copy takes.

The prefix cache owns the pages of requests that have ended, until it evicts them: they are reported with the stack of the
request that filled them.

Besides, the pages are counted by state, from numbers that SGLang keeps on the host: free ones, and those in the prefix cache that no
request uses. A request's pages are counted from its length after each prefill and, now and then, while it decodes. It has ended when the
cache has taken over its pages; or when its object is gone, and then it still holds them. On a server that prefills for others, its pages
wait from the end of its prefill until they are sent.
"""

import sys
import threading
import weakref
from collections import deque
from types import ModuleType
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from culeak.adapters.blocks import Domain, Pages, replace, replace_own
from culeak.adapters.imports import Adapter

#: What a copy holds before it has arrived; no page has this number.
_ABSENT = -1
#: Seconds between two looks at copies that have not arrived yet.
_PAUSE = 0.01
#: Page numbers that fit into the buffer for copies, half a megabyte of pinned memory: asking for more may wait for the device.
_ROOM = 1 << 16


class _Pool:
    """The pages of one allocator."""

    def __init__(self, domain: Domain, torch: Any, allocator: Any) -> None:
        self.domain = domain
        self.torch = torch
        self.start = domain.range()
        self.page = page_bytes(allocator)
        self.tokens = allocator.page_size
        self.pages = domain.pool(self.page)
        self.of = weakref.ref(allocator)
        #: The prefix cache, once it is known.
        self.cache: Callable[[], Any] = lambda: None
        #: Requests that run, by the id of their object, since a server may use a name again: their pages, and how many.
        self.requests: Dict[int, Tuple[Pages, int]] = {}
        #: Those whose pages are being sent to a server that decodes.
        self.sent: Set[int] = set()
        self.issued = 0
        self.backup = 0
        self.serials: Dict[int, int] = {}
        self.is_cuda = bool(allocator.free_pages.is_cuda)
        #: Page numbers on their way to the host, and the first serial of those that were allocated; None: they were freed.
        #: With them, the end of their part of the buffer.
        self.moving: Deque[Tuple[Any, Optional[int], int]] = deque()
        #: Arrived. Buffers are given back on the program's thread, because PyTorch calls CUDA then.
        self.arrived: Deque[Any] = deque()
        self.wake = threading.Event()
        # Both count on; the part in use is between them, modulo the size.
        self.begin = self.end = 0
        self.room = _ROOM
        if self.is_cuda:
            self.buffer = torch.empty((self.room,), dtype=allocator.free_pages.dtype, pin_memory=True)
            threading.Thread(target=_match, args=(weakref.ref(self), self.wake), name="culeak-sglang", daemon=True).start()

    def report(self) -> None:
        allocator, cache = self.of(), self.cache()
        if allocator is None or not self.domain.is_on:
            return
        size, free = allocator.size // allocator.page_size, allocator.available_size() // allocator.page_size
        evictable = getattr(cache, "evictable_size", int)()
        # Caches of several pools have several sizes.
        cached = evictable // allocator.page_size if isinstance(evictable, int) else 0
        held = max(0, size - free - cached)
        # Requests may share pages, with those that are not being sent, too. Finalizers may run on other threads.
        requests, sent = dict(self.requests), set(self.sent)
        live = sum(count for request, (_, count) in requests.items() if request not in sent)
        waiting = min(max(0, held - live), sum(count for request, (_, count) in requests.items() if request in sent))
        self.pages.set(held - waiting, cached, waiting, max(0, free))

    def holds(self, request: Any, count: int) -> None:
        known = self.requests.get(id(request))
        if known is None:
            owner = self.pages.owner(request.rid)
            weakref.finalize(request, self.lost, id(request)).atexit = False
        elif known[1] == count:
            return
        else:
            owner = known[0]
        self.requests[id(request)] = owner, count
        owner.set(count)

    def sends(self, requests: List[Any]) -> None:
        sent = {id(request) for request in requests} & self.requests.keys()
        for request in sent - self.sent:
            owner, count = self.requests[request]
            owner.set(0, waiting=count)
        if sent != self.sent:
            self.sent = sent
            self.report()

    def lost(self, request: int) -> None:
        self.sent.discard(request)
        known = self.requests.pop(request, None)
        if known is not None:
            known[0].end()

    def released(self, request: Any) -> None:
        self.sent.discard(id(request))
        known = self.requests.pop(id(request), None)
        if known is not None:
            known[0].set(0)
            known[0].end()

    def took(self, pages: Any) -> None:
        count, first = len(pages), self.issued
        self.issued += count
        self.domain.alloc_pages([self.start + serial * self.page for serial in range(first, first + count)], self.page)
        self.move(pages, first)

    def gave(self, pages: Any) -> None:
        self.move(pages, None)

    def move(self, pages: Any, first: Optional[int]) -> None:
        if not self.is_cuda:
            self.match(pages.tolist(), first)
            return
        self.arrived.clear()
        copy = self.part(len(pages))
        if copy is None:
            copy = self.torch.empty((len(pages),), dtype=pages.dtype, pin_memory=True)
        copy.fill_(_ABSENT).copy_(pages, non_blocking=True)
        self.moving.append((copy, first, self.end))
        self.wake.set()

    def part(self, count: int) -> Any:
        """A part of the buffer that no copy on its way uses; None if there is none."""
        at = self.end % self.room
        skipped = self.room - at if at + count > self.room else 0
        if self.end + skipped + count - self.begin > self.room or count > self.room // 4:
            return None
        self.end += skipped + count
        at = (at + skipped) % self.room
        return self.buffer[at : at + count]

    def match(self, pages: List[int], first: Optional[int]) -> None:
        if first is not None:
            self.serials.update(zip(pages, range(first, first + len(pages))))
            return
        freed = {self.serials.pop(page, None) for page in pages}
        self.domain.free_pages([self.start + serial * self.page for serial in freed if serial is not None])

    def match_arrived(self) -> bool:
        """Whether all copies have arrived."""
        while self.moving:
            copy, first, end = self.moving[0]
            pages = copy.numpy()
            if (pages == _ABSENT).any():
                return False
            self.match(pages.ravel().tolist(), first)
            self.begin = end
            self.arrived.append(self.moving.popleft())
        return True

    def reset(self) -> None:
        self.domain.free_range(self.start)
        self.serials.clear()
        self.report()

    def restored(self) -> None:
        """What was allocated since the backup is free again."""
        undone = range(self.backup, self.issued)
        self.domain.free_pages([self.start + serial * self.page for serial in undone])
        self.report()


def _match(of: "weakref.ref[_Pool]", wake: threading.Event) -> None:
    while True:
        wake.wait()
        wake.clear()
        while True:
            pool = of()
            if pool is None:
                return
            try:
                if pool.match_arrived():
                    break
            except Exception as error:  # noqa: BLE001
                pool.domain.failed(error)
                return
            del pool
            # No event tells this thread, because asking for one is a call of CUDA.
            wake.wait(_PAUSE)
            wake.clear()
        del pool


def page_bytes(allocator: Any) -> int:
    """Bytes of one page in all layers, from the sizes of the KV cache."""
    cache = allocator.get_kvcache()
    sizes = cache.get_kv_size_bytes()
    total = sum(sizes) if isinstance(sizes, (tuple, list)) else sizes
    # The cache has one page more than it can hand out.
    return max(1, int(total) * allocator.page_size // (allocator.size + allocator.page_size))


def _taken(allocator: Any, torch: Any, count: int) -> Any:
    """The pages that were cut off the front of the free ones: they still lie before them."""
    left = allocator.free_pages
    before = left.storage_offset() - count
    if before < 0 or left.dim() != 1 or (len(left) and left.stride(0) != 1):
        raise RuntimeError("free pages are not taken from the front")
    return torch.as_strided(left, (count,), (1,), before)


def _start(module: ModuleType) -> None:
    torch = sys.modules["torch"]
    domain = Domain("SGLang")

    def of(allocator: Any) -> Optional[_Pool]:
        if not domain.is_on:
            return None
        known = allocator.__dict__.get("_culeak")
        if known is None:
            known = allocator._culeak = _Pool(domain, torch, allocator)
            # Pages that were allocated before have no record.
            weakref.finalize(allocator, domain.free_range, known.start).atexit = False
            weakref.finalize(allocator, known.pages.end).atexit = False
        return known  # type: ignore[no-any-return]

    def allocates(original: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.__dict__.get("_culeak_inside"):
                return original(self, *args, **kwargs)
            before = self.available_size()
            # A subclass may call the function of its base.
            self._culeak_inside = True
            try:
                result = original(self, *args, **kwargs)
            finally:
                self._culeak_inside = False
            if result is not None:
                try:
                    known = of(self)
                    count = (before - self.available_size()) // self.page_size
                    if known is not None and count > 0:
                        known.took(_taken(self, torch, count))
                        known.report()
                except Exception as error:  # noqa: BLE001
                    domain.failed(error)
            return result

        return allocate

    def releases(original: Callable[..., Any]) -> Callable[..., Any]:
        def _release_page_ids(self: Any, *page_ids: Any, **kwargs: Any) -> Any:
            given(self, page_ids, 1)
            result = original(self, *page_ids, **kwargs)
            counted(self)
            return result

        return _release_page_ids

    def frees(original: Callable[..., Any]) -> Callable[..., Any]:
        def free(self: Any, free_index: Any, *args: Any, **kwargs: Any) -> Any:
            # In a group, pages are freed together, by another call of this function.
            in_group = self.__dict__.get("free_group") is not None
            if "is_not_in_free_group" in self.__dict__:
                in_group = not self.is_not_in_free_group
            if not in_group:
                given(self, (free_index,), self.page_size)
            result = original(self, free_index, *args, **kwargs)
            counted(self)
            return result

        return free

    def given(allocator: Any, tensors: Any, tokens: int) -> None:
        try:
            known = of(allocator)
            if known is not None:
                for tensor in tensors:
                    if tensor.numel():
                        known.gave(tensor if tokens == 1 else tensor // tokens)
        except Exception as error:  # noqa: BLE001
            domain.failed(error)

    def counted(allocator: Any) -> None:
        known = allocator.__dict__.get("_culeak")
        if known is not None:
            try:
                known.report()
            except Exception as error:  # noqa: BLE001
                domain.failed(error)

    def then(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def made(original: Callable[..., Any]) -> Callable[..., Any]:
            def function(self: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(self, *args, **kwargs)
                known = self.__dict__.get("_culeak")
                if known is not None:
                    try:
                        if what == "backup":
                            known.backup = known.issued
                        elif what == "restore":
                            known.restored()
                        else:
                            known.reset()
                    except Exception as error:  # noqa: BLE001
                        domain.failed(error)
                return result

            return function

        return made

    for owner in (module.TokenToKVPoolAllocator, module.PagedTokenToKVPoolAllocator):
        replace(owner, "alloc", allocates)
        for name in ("alloc_extend", "alloc_decode"):
            replace_own(owner, name, allocates)
        if not replace_own(owner, "_release_page_ids", releases):
            replace_own(owner, "free", frees)
        replace(owner, "clear", then("reset"))
        for name, what in (("backup_state", "backup"), ("restore_state", "restore")):
            if hasattr(owner, name):
                replace(owner, name, then(what))


def _known(cache: Any) -> Optional[_Pool]:
    """The pool of a prefix cache; None until the first allocation from it."""
    allocator = getattr(cache, "token_to_kv_pool_allocator", None)
    known: Optional[_Pool] = getattr(allocator, "__dict__", {}).get("_culeak")
    if known is not None and known.cache() is not cache:
        known.cache = weakref.ref(cache)
    return known if known is not None and known.domain.is_on else None


def _length(request: Any) -> int:
    return len(request.origin_input_ids) + len(request.output_ids)


def _start_cache(module: ModuleType) -> None:
    def then(act: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def made(original: Callable[..., Any]) -> Callable[..., Any]:
            def function(self: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(self, *args, **kwargs)
                known = _known(self)
                if known is not None:
                    try:
                        act(known, self, *args, **kwargs)
                        known.report()
                    except Exception as error:  # noqa: BLE001
                        known.domain.failed(error)
                return result

            return function

        return made

    def grew(known: _Pool, cache: Any, req: Any, *args: Any, **kwargs: Any) -> None:
        known.holds(req, -(-_length(req) // known.tokens))

    def ended(known: _Pool, cache: Any, req: Any, *args: Any, **kwargs: Any) -> None:
        known.released(req)

    replace(module.RadixCache, "cache_unfinished_req", then(grew))
    replace(module.RadixCache, "cache_finished_req", then(ended))
    for name in ("evict", "reset"):
        replace(module.RadixCache, name, then(lambda *_, **__: None))


def _start_batch(module: ModuleType) -> None:
    def decodes(original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_for_decode(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            known = _known(getattr(self, "tree_cache", None))
            if known is not None:
                try:
                    size = known.tokens
                    for request in self.reqs:
                        # Each step adds a token: pages of a few tokens are counted once in 16 steps.
                        length = _length(request)
                        if length % max(size, 16) == 1 and id(request) in known.requests:
                            known.holds(request, -(-length // size))
                except Exception as error:  # noqa: BLE001
                    known.domain.failed(error)
            return result

        return prepare_for_decode

    replace(module.ScheduleBatch, "prepare_for_decode", decodes)


def _start_prefill(module: ModuleType) -> None:
    def processes(original: Callable[..., Any]) -> Callable[..., Any]:
        def process_disagg_prefill_inflight_queue(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            known = _known(getattr(self, "tree_cache", None))
            if known is not None:
                try:
                    known.sends(self.disagg_prefill_inflight_queue)
                except Exception as error:  # noqa: BLE001
                    known.domain.failed(error)
            return result

        return process_disagg_prefill_inflight_queue

    replace(module.SchedulerDisaggregationPrefillMixin, "process_disagg_prefill_inflight_queue", processes)


_MODULES = {
    "sglang.srt.mem_cache.allocator": _start,
    "sglang.srt.mem_cache.radix_cache": _start_cache,
    "sglang.srt.managers.schedule_batch": _start_batch,
    "sglang.srt.disaggregation.prefill": _start_prefill,
}
ADAPTER = Adapter("sglang", _MODULES)


def enable() -> None:
    """Records the pages of token-to-KV pools, in this process and its children."""
    ADAPTER.enable()
