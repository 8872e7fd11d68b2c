"""Stand-in for TensorFlow 2.21: the library with its allocator (tests/victims/tensorflow.cpp), and what calls it."""

import ctypes
import os

__version__ = "2.21.0"

_library = ctypes.CDLL(os.environ["TENSORFLOW"])
_library.new_allocator.restype = ctypes.c_void_p
_library.allocate.restype = ctypes.c_void_p
_library.allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_library.deallocate.restype = None
_library.deallocate.argtypes = [ctypes.c_void_p, ctypes.c_void_p]


class Device:
    def __init__(self, number):
        self._allocator = _library.new_allocator(number)

    def zeros(self, size):
        return Tensor(self._allocator, size)


class Tensor:
    def __init__(self, allocator, size):
        self._allocator = allocator
        self.address = _library.allocate(allocator, size)

    def __del__(self):
        if self.address:
            _library.deallocate(self._allocator, self.address)
