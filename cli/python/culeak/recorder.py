"""The preload library as seen from this process: plain functions, found by name, that cost a call and never wait."""

import ctypes
from typing import NamedTuple, Optional

#: Pseudo device numbers for the total of all devices, and for page-locked memory of the host.
ALL_DEVICES = -1
HOST = -2
#: The capacity of a recording.
MOST_DEVICES = 32


class Reading(NamedTuple):
    """An interval's values for one device, in bytes."""

    #: Allocated in the interval and not freed.
    left: int
    #: The number of blocks of ``left``.
    left_count: int
    #: The maximum of ``left`` so far: exact.
    peak: int
    #: In use now, no matter when it was allocated.
    held: int


class _Interval(ctypes.Structure):
    """``struct culeak_interval`` of culeak.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in Reading._fields]


class Recorder:
    """The library, if it is loaded."""

    _found = None  # type: Optional[Recorder]

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.culeak_mark.argtypes = [ctypes.c_char_p]
        library.culeak_mark.restype = None
        library.culeak_phase_begin.argtypes = [ctypes.c_char_p]
        library.culeak_phase_begin.restype = ctypes.c_uint64
        library.culeak_phase_end.argtypes = [ctypes.c_uint64]
        library.culeak_phase_end.restype = None
        library.culeak_snapshot.argtypes = [ctypes.c_char_p]
        library.culeak_snapshot.restype = None
        library.culeak_interval_begin.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
        library.culeak_interval_begin.restype = ctypes.c_uint32
        library.culeak_interval_read.argtypes = [ctypes.c_uint32, ctypes.c_int, ctypes.POINTER(_Interval)]
        library.culeak_interval_read.restype = ctypes.c_int

    @classmethod
    def here(cls) -> "Optional[Recorder]":
        """The library of this process; None if the process is not recorded."""
        if cls._found is None:
            library = ctypes.CDLL(None)
            # The newest function: an older library is treated as none.
            if hasattr(library, "culeak_set_pages"):
                cls._found = cls(library)
        return cls._found

    def mark(self, name: str) -> None:
        self._library.culeak_mark(mark_name(name).encode())

    def begin_phase(self, name: str) -> int:
        """Begins a phase and returns its id."""
        return int(self._library.culeak_phase_begin(mark_name(name).encode()))

    def end_phase(self, number: int) -> None:
        """Ends a phase, on any thread."""
        self._library.culeak_phase_end(number)

    def snapshot(self, name: str) -> None:
        self._library.culeak_snapshot(mark_name(name).encode())

    def begin(self, name: str, limit: int = 0) -> int:
        """Begins an interval and returns its number, or 0 if intervals are disabled. With a limit in bytes, a snapshot is written
        when all devices together need more."""
        return int(self._library.culeak_interval_begin(mark_name(name).encode(), limit))

    def read(self, number: int, device: int) -> Optional[Reading]:
        """The interval's values for a device; None if another interval has begun, or the device was never used."""
        interval = _Interval()
        if not self._library.culeak_interval_read(number, device, ctypes.byref(interval)):
            return None
        return Reading(*(getattr(interval, name) for name in Reading._fields))


def mark_name(name: str) -> str:
    """A name as the recording stores it: names are passed as C strings, and long ones are cut."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:1000]
