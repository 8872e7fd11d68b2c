"""See the package above."""

import contextlib

from . import memory
from .memory import alloc, get_allocator, set_allocator

__all__ = ["alloc", "get_allocator", "memory", "set_allocator", "using_allocator"]


@contextlib.contextmanager
def using_allocator(allocator=None):
    before = memory._get_thread_local_allocator()
    memory._set_thread_local_allocator(allocator)
    try:
        yield
    finally:
        memory._set_thread_local_allocator(before)
