"""Calls the two functions of a pluggable allocator, as PyTorch's C++ does."""

import ctypes

ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class Custom:
    def __init__(self, alloc, free):
        self.alloc, self.free = ALLOC(alloc), FREE(free)


def _cuda_customAllocator(alloc, free):
    assert type(alloc) is int and type(free) is int
    return Custom(alloc, free)
