"""See the package above."""

from . import memory
from .memory import MemPool, use_mem_pool

__all__ = ["MemPool", "memory", "use_mem_pool"]
