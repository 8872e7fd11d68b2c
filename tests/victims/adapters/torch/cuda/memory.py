"""Pluggable allocators and pools."""

import contextlib
import ctypes

import torch


class CUDAPluggableAllocator:
    def __init__(self, path_to_so_file, alloc_fn_name, free_fn_name):
        library = ctypes.CDLL(path_to_so_file)
        alloc = ctypes.cast(getattr(library, alloc_fn_name), ctypes.c_void_p).value
        free = ctypes.cast(getattr(library, free_fn_name), ctypes.c_void_p).value
        self._allocator = torch._C._cuda_customAllocator(alloc, free)


class MemPool:
    id = (0, 1)


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    yield
