"""A stand-in for RMM 26.10: resources, the current one, and buffers that use it."""

from . import mr, pylibrmm
from .pylibrmm import memory_resource

__version__ = "26.10.0"
__all__ = ["DeviceBuffer", "mr", "pylibrmm", "reinitialize"]


def reinitialize(pool_allocator=False, managed_memory=False, initial_pool_size=None, maximum_pool_size=None, devices=0):
    plain = memory_resource.CudaMemoryResource()
    memory_resource._current[devices] = memory_resource.PoolMemoryResource(plain) if pool_allocator else plain


class DeviceBuffer:
    def __init__(self, size):
        # As compiled code does, not through the module's functions.
        self.mr, self.size = memory_resource._current[0], size
        self.ptr = self.mr.allocate(size, None)

    def __del__(self):
        self.mr.deallocate(self.ptr, self.size, None)
