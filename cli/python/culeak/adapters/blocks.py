"""What adapters report to the preload library: blocks of a domain, singly or as pages.

The functions are called with the interpreter's lock held (``ctypes.PyDLL``), since they wait for nothing; giving the lock up
and taking it back would cost more than the call.
"""

import ctypes
import functools
import os
from array import array
from operator import index
from typing import Any, Callable, List, Optional, Set, Tuple

from culeak.recorder import Recorder

#: Numbers from here on are no addresses. Each pool whose pages have no address of their own gets a range of 2^48 of them.
NUMBERED = 1 << 56
RANGE = 1 << 48
_RANGES = 256
#: Addresses and numbers are below this.
_END = NUMBERED + _RANGES * RANGE
#: No block has as many bytes.
MOST_BYTES = 1 << 56
#: Addresses are kept with this bit, so that `culeak why` does not take the adapter for a holder of the blocks.
MARK = 1 << 60


def say(text: str) -> None:
    """A message on stderr, in one piece, that cannot fail."""
    try:
        os.write(2, "culeak: {}\n".format(text).encode("utf-8", "backslashreplace"))
    except OSError:
        pass


class _Functions:
    _found: "Optional[_Functions]" = None

    def __init__(self) -> None:
        library = ctypes.PyDLL(None)
        number, word = ctypes.c_uint64, ctypes.c_size_t
        self.alloc = _declared(library.culeak_alloc, [ctypes.c_char_p, number, word, number])
        self.free = _declared(library.culeak_free, [ctypes.c_char_p, number])
        self.alloc_pages = _declared(library.culeak_alloc_pages, [ctypes.c_char_p, number, word, word, number])
        self.free_pages = _declared(library.culeak_free_pages, [ctypes.c_char_p, number, word])
        self.pool_begin = _declared(library.culeak_pool_begin, [ctypes.c_char_p, word])
        self.owner_begin = _declared(library.culeak_owner_begin, [number, ctypes.c_char_p])
        self.pool_begin.restype = self.owner_begin.restype = number
        self.set_pages = _declared(library.culeak_set_pages, [number, word])
        self.owner_end = _declared(library.culeak_owner_end, [number])
        self.forward = _declared(library.culeak_forward, [ctypes.c_char_p, ctypes.c_void_p])
        self.forward.restype = ctypes.c_int
        self.forward_bfc = _declared(library.culeak_forward_bfc, [ctypes.c_char_p, ctypes.c_void_p])
        self.forward_bfc.restype = ctypes.c_int

    @classmethod
    def here(cls) -> "_Functions":
        if cls._found is None:
            if Recorder.here() is None:
                raise RuntimeError("the preload library is not loaded")
            cls._found = cls()
        return cls._found


def _declared(function: Any, arguments: List[Any]) -> Any:
    function.argtypes = arguments
    function.restype = None
    return function


def forward(domain: str, alloc: int, free: int) -> Optional[Tuple[int, int]]:
    """Addresses of two C functions that call these two and record; None if there are too many already."""
    pair = (ctypes.c_void_p * 2)(alloc, free)
    if not _Functions.here().forward(domain.encode(), ctypes.addressof(pair)):
        return None
    return int(pair[0] or 0), int(pair[1] or 0)


def forward_bfc(domain: str, methods: Tuple[int, int, int, int]) -> Optional[Tuple[int, int]]:
    """Addresses of functions for the place of the first two of these methods; None if those of another library are in use."""
    words = (ctypes.c_void_p * 4)(*methods)
    if not _Functions.here().forward_bfc(domain.encode(), ctypes.addressof(words)):
        return None
    return int(words[0] or 0), int(words[1] or 0)


class Pages:
    """How many pages a pool has in each state, or an owner in it. At most 4096 of them are recorded at one time."""

    def __init__(self, number: int) -> None:
        self._id = number
        functions = _Functions.here()
        self._set, self._end, self._begin = functions.set_pages, functions.owner_end, functions.owner_begin

    def owner(self, name: str) -> "Pages":
        """An owner in this pool, such as a request, which begins now."""
        return Pages(self._begin(self._id, name.encode("utf-8", "backslashreplace")))

    def set(self, live: int, reclaimable: int = 0, waiting: int = 0, free: int = 0) -> None:
        """In use; kept by a cache alone; kept until a transfer has ended; free. The numbers of an owner, or of the whole pool."""
        pages = array("Q", (live, reclaimable, waiting, free))
        self._set(self._id, pages.buffer_info()[0])

    def end(self) -> None:
        """An owner that has ended and still has pages stays in reports until they are set to 0. A pool ends with its owners."""
        self._end(self._id)


class Domain:
    """The blocks of one framework. After a failure it forgets them, and nothing is recorded any more.

    Sizes and addresses that no block can have are a ValueError, and nothing of that call is recorded."""

    def __init__(self, name: str) -> None:
        functions = _Functions.here()
        self.name = name
        self.is_on = True
        self._name = name.encode()
        self._alloc, self._free = functions.alloc, functions.free
        self._alloc_pages, self._free_pages = functions.alloc_pages, functions.free_pages
        # What is recorded and live: blocks from before the adapter started are not among them.
        self._live: Set[int] = set()
        self._ranges = 0
        self._pools: List[Pages] = []

    def pool(self, page_bytes: int) -> Pages:
        """A pool of pages whose states are reported. Independent of blocks."""
        begun = _Functions.here().pool_begin(self._name, index(page_bytes)) if self.is_on else 0
        self._pools.append(Pages(begun))
        return self._pools[-1]

    def range(self) -> int:
        """The first number for the pages of a pool whose pages have no address."""
        start = NUMBERED + self._ranges % _RANGES * RANGE
        self._ranges += 1
        return start

    def _refuse(self, address: int, size: int, count: int) -> None:
        what = "a block" if count == 1 else "{:,} blocks".format(count)
        if not 0 <= address < _END:
            raise ValueError("{}: {} at {:#x}; expected an address of 0 to 2**57 - 1".format(self.name, what, address))
        raise ValueError("{}: {} of {:,} bytes at {:#x}; expected 0 to 2**56 - 1".format(self.name, what, size, address))

    def alloc(self, address: int, size: int, stream: int = 0) -> None:
        address, size = index(address), index(size)
        if not (0 <= size < MOST_BYTES and 0 <= address < _END):
            self._refuse(address, size, 1)
        if self.is_on:
            self._live.add(address | MARK)
            self._alloc(self._name, address, size, stream)

    def free(self, address: int) -> None:
        # Without a test before: another thread may run in between.
        try:
            self._live.remove(address | MARK)
        except KeyError:
            return
        self._free(self._name, address)

    def alloc_pages(self, addresses: List[int], size: int) -> None:
        """Blocks of ``size`` bytes each, which one call allocated."""
        size = index(size)
        if not (size >= 0 and size * len(addresses) < MOST_BYTES):
            self._refuse(addresses[0] if addresses else 0, size, len(addresses))
        if addresses and not (0 <= min(addresses) and max(addresses) < _END):
            self._refuse(next(page for page in addresses if not 0 <= page < _END), size, len(addresses))
        if len(addresses) == 1 and addresses[0] >= NUMBERED:
            if self.is_on:
                self._live.add(addresses[0])
                self._alloc(self._name, addresses[0], size, 0)
        elif self.is_on and addresses:
            self._live.update(_keys(addresses))
            pages = array("Q", addresses)
            self._alloc_pages(self._name, pages.buffer_info()[0], len(pages), size, 0)

    def free_pages(self, addresses: List[int]) -> None:
        """Those that are not recorded are ignored."""
        if len(addresses) == 1 and addresses[0] >= NUMBERED:
            try:
                self._live.remove(addresses[0])
            except KeyError:
                return
            self._free(self._name, addresses[0])
        else:
            self._forget(_keys(addresses))

    def _forget(self, keys: List[int]) -> None:
        known = self._live.intersection(keys)
        if known:
            self._live -= known
            pages = array("Q", [key & ~MARK for key in known])
            self._free_pages(self._name, pages.buffer_info()[0], len(pages))

    def free_range(self, start: int) -> None:
        """The pool with this range of numbers is gone, or all its pages are free."""
        self._forget([number for number in list(self._live) if start <= number < start + RANGE])

    def failed(self, error: BaseException) -> None:
        """Says what happened, and takes back what was recorded: half of the blocks would be a wrong answer."""
        if self.is_on:
            self.is_on = False
            say(
                "the adapter for {} has stopped, and its blocks are not reported: {}: {}".format(
                    self.name, type(error).__name__, error
                )
            )
            self._forget(list(self._live))
            for pool in self._pools:
                pool.end()


def _keys(addresses: List[int]) -> List[int]:
    """Numbers of pages that have no address stay as they are."""
    if not addresses or addresses[0] >= NUMBERED:
        return addresses
    return [address | MARK for address in addresses]


#: What was replaced, so that an adapter that cannot start leaves nothing behind.
_REPLACED: List[Tuple[Any, str, Any]] = []


def replaced() -> int:
    """How many functions are replaced."""
    return len(_REPLACED)


def undo(down_to: int) -> None:
    """Puts the originals back that were replaced since `replaced` returned this number."""
    while len(_REPLACED) > down_to:
        owner, name, original = _REPLACED.pop()
        setattr(owner, name, original)


def replace(owner: Any, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces a function of a class or module by ``made(original)``. It is an error if there is none."""
    original = getattr(owner, name)
    wrapped = made(original)
    functools.update_wrapper(wrapped, original)
    setattr(owner, name, wrapped)
    _REPLACED.append((owner, name, original))


def replace_own(owner: type, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """As `replace`, if the class itself defines the function."""
    if name not in vars(owner):
        return False
    replace(owner, name, made)
    return True
