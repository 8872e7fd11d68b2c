"""The preload library as this process sees it: plain functions, found by name, that cost a call and never wait."""

import ctypes
from typing import NamedTuple, Optional

#: Stand for all devices together, and for page-locked memory of the host, where a device's number is expected.
ALL_DEVICES = -1
HOST = -2
#: Devices that a recording has room for.
MOST_DEVICES = 32


class Reading(NamedTuple):
    """What an interval says of a device, in bytes."""

    #: Allocated in the interval and not freed.
    left: int
    #: In so many blocks.
    left_count: int
    #: The most that ``left`` ever was: exact.
    peak: int
    #: In use now, whenever it was allocated.
    held: int


class _Interval(ctypes.Structure):
    """``struct culeak_interval`` of culeak.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in Reading._fields]


class Recorder:
    """The library, where there is one."""

    _found = None  # type: Optional[Recorder]

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.culeak_mark.argtypes = [ctypes.c_char_p]
        library.culeak_mark.restype = None
        library.culeak_snapshot.argtypes = [ctypes.c_char_p]
        library.culeak_snapshot.restype = None
        library.culeak_interval_begin.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
        library.culeak_interval_begin.restype = ctypes.c_uint32
        library.culeak_interval_read.argtypes = [ctypes.c_uint32, ctypes.c_int, ctypes.POINTER(_Interval)]
        library.culeak_interval_read.restype = ctypes.c_int

    @classmethod
    def here(cls) -> "Optional[Recorder]":
        """The library of this process; None in one that is not recorded."""
        if cls._found is None:
            library = ctypes.CDLL(None)
            if hasattr(library, "culeak_interval_begin"):
                cls._found = cls(library)
        return cls._found

    def mark(self, name: str) -> None:
        self._library.culeak_mark(mark_name(name).encode())

    def snapshot(self, name: str) -> None:
        self._library.culeak_snapshot(mark_name(name).encode())

    def begin(self, name: str, limit: int = 0) -> int:
        """Begins an interval and says its number; 0 where nobody measures intervals. With a limit in bytes, a snapshot is
        kept of the moment when all devices together need more."""
        return int(self._library.culeak_interval_begin(mark_name(name).encode(), limit))

    def read(self, number: int, device: int) -> Optional[Reading]:
        """What the interval says of a device; None when another one has begun, or the device was never used."""
        interval = _Interval()
        if not self._library.culeak_interval_read(number, device, ctypes.byref(interval)):
            return None
        return Reading(*(getattr(interval, name) for name in Reading._fields))


def mark_name(name: str) -> str:
    """A name as the recording will have it: names travel as C strings, and long ones are cut."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:1000]
