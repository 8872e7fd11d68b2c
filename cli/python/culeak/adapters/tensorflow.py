"""TensorFlow: the chunks of device memory that its allocator hands out (2.21).

``tsl::BFCAllocator`` is C++, and TensorFlow calls it from threads of its own, without the interpreter's lock. So no Python runs
in between: the entries of ``AllocateRaw`` and ``DeallocateRaw`` in the virtual tables of the allocator's classes are replaced by
two functions of the preload library that call them and record. Entries are replaced only if all names are exported and each
table has exactly one entry with each function's address. Otherwise nothing is changed.
"""

import ctypes
import mmap
import os
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Tuple

from culeak.adapters.blocks import forward_bfc
from culeak.adapters.dl_info import DlInfo
from culeak.adapters.imports import Adapter

_LIBRARY = "libtensorflow_framework.so"
#: The methods that the preload library needs; the first two are replaced.
_METHODS = {
    "AllocateRaw": "_ZN3tsl12BFCAllocator11AllocateRawEmmRKNS_20AllocationAttributesE",
    "DeallocateRaw": "_ZN3tsl12BFCAllocator13DeallocateRawEPv",
    "AllocatedSize": "_ZNK3tsl12BFCAllocator13AllocatedSizeEPKv",
    "GetMemoryType": "_ZNK3tsl12BFCAllocator13GetMemoryTypeEv",
}
#: The virtual table of the class, and those of the classes that inherit the methods and may be missing.
_TABLE = "_ZTVN3tsl12BFCAllocatorE"
_DERIVED = ["_ZTVN10tensorflow15GPUBFCAllocatorE", "_ZTVN10tensorflow27PluggableDeviceBFCAllocatorE"]
#: No class of TensorFlow has a larger table.
_MOST_ENTRIES = 256


class _Symbol(ctypes.Structure):
    """``Elf64_Sym``."""

    _fields_ = [
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint8),
        ("other", ctypes.c_uint8),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    ]


class _Mapping(NamedTuple):
    start: int
    end: int
    protection: int
    file: str


_BITS = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "x": mmap.PROT_EXEC}


def _mappings() -> List[_Mapping]:
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            words = line.rstrip("\n").split(None, 5)
            start, end = (int(word, 16) for word in words[0].split("-"))
            protection = sum(_BITS.get(letter, 0) for letter in words[1][:3])
            found.append(_Mapping(start, end, protection, words[5] if len(words) > 5 else ""))
    return found


def _loaded() -> ctypes.CDLL:
    """The library, which ``import tensorflow`` has loaded."""
    for mapping in _mappings():
        if os.path.basename(mapping.file).startswith(_LIBRARY):
            return ctypes.CDLL(mapping.file, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    raise LookupError("{} is not loaded".format(_LIBRARY))


def _size_of(address: int) -> int:
    """The size of the object that this symbol names."""
    find = ctypes.CDLL(None).dladdr1
    find.argtypes = [ctypes.c_void_p, ctypes.POINTER(DlInfo), ctypes.POINTER(ctypes.POINTER(_Symbol)), ctypes.c_int]
    found, symbol = DlInfo(), ctypes.POINTER(_Symbol)()
    with_symbol = 1  # RTLD_DL_SYMENT
    if not find(address, ctypes.byref(found), ctypes.byref(symbol), with_symbol) or not symbol or found.address != address:
        return 0
    return int(symbol.contents.size)


def _entries(name: str, table: int, functions: List[int]) -> Dict[int, int]:
    """Where a virtual table has each of these functions: the function by the address of its entry."""
    words = _size_of(table) // 8
    if not 0 < words <= _MOST_ENTRIES:
        raise LookupError("{} has {} entries".format(name, words))
    entries = (ctypes.c_uint64 * words).from_address(table)
    places = {}
    for function in functions:
        at = [index for index, entry in enumerate(entries) if entry == function]
        if len(at) != 1:
            raise LookupError("{} has {} entries for a function that it inherits, expected 1".format(name, len(at)))
        places[table + 8 * at[0]] = function
    return places


def _write(places: Dict[int, int]) -> None:
    """Stores these words in memory that the loader made read-only."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = mmap.PAGESIZE
    mappings = _mappings()
    for place, word in places.items():
        start = place // page * page
        protection = next(mapping.protection for mapping in mappings if mapping.start <= place < mapping.end)
        if protect(start, page, protection | mmap.PROT_WRITE):
            raise OSError(ctypes.get_errno(), "mprotect: " + os.strerror(ctypes.get_errno()))
        ctypes.c_uint64.from_address(place).value = word
        protect(start, page, protection)


def _start(tensorflow: ModuleType) -> None:
    library = _loaded()

    def address_of(name: str) -> int:
        return ctypes.addressof(ctypes.c_uint64.in_dll(library, name))

    methods = []
    for name, symbol in _METHODS.items():
        try:
            methods.append(address_of(symbol))
        except ValueError:
            raise LookupError("{} does not export tsl::BFCAllocator::{}".format(_name_of(library), name)) from None
    places: Dict[int, int] = {}
    for table in [_TABLE] + _DERIVED:
        try:
            places.update(_entries(table, address_of(table), methods[:2]))
        except ValueError:
            if table == _TABLE:
                raise LookupError("{} does not export {}".format(_name_of(library), table)) from None
    four: Tuple[int, int, int, int] = (methods[0], methods[1], methods[2], methods[3])
    pair = forward_bfc("TensorFlow", four)
    if pair is None:
        raise LookupError("another library with such an allocator is recorded already")
    own = dict(zip(methods, pair))
    try:
        _write({place: own[function] for place, function in places.items()})
    except Exception:
        _write(places)
        raise


def _name_of(library: Any) -> str:
    return os.path.basename(library._name)


ADAPTER = Adapter("tensorflow", {"tensorflow": _start})


def enable() -> None:
    """Records the chunks that are allocated from now on, by every thread."""
    ADAPTER.enable()
