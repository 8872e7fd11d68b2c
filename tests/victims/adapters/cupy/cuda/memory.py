"""Memory, pointers to it, and a pool that splits one large block."""

import driver


class BaseMemory:
    pass


class Memory(BaseMemory):
    """One allocation of CUDA."""

    def __init__(self, size):
        self.size, self.device_id, self.ptr = size, 0, driver.allocate(size)

    def __del__(self):
        driver.free(self.ptr)


class UnownedMemory(BaseMemory):
    def __init__(self, ptr, size, owner, device_id=-1):
        assert device_id >= 0, "CUDA would be asked"
        self.ptr, self.size, self.device_id, self._owner = ptr, size, device_id, owner


class PooledMemory(BaseMemory):
    """No weak references, as in the compiled class."""

    __slots__ = ("ptr", "size", "device_id", "pool")

    def __init__(self, ptr, size, pool):
        self.ptr, self.size, self.device_id, self.pool = ptr, size, 0, pool

    def free(self):
        ptr, self.ptr = self.ptr, 0
        if ptr:
            self.pool.free.append(ptr)

    def __del__(self):
        self.free()


class MemoryPointer:
    def __init__(self, mem, offset):
        assert isinstance(mem, BaseMemory)
        self.mem, self.ptr = mem, mem.ptr + offset


class MemoryPool:
    def __init__(self):
        self.slab, self.used, self.free = None, 0, []

    def malloc(self, size):
        if self.slab is None:
            self.slab = Memory(1 << 20)
        if not self.free:
            self.free.append(self.slab.ptr + self.used)
            self.used += 4096
        return MemoryPointer(PooledMemory(self.free.pop(), 4096, self), 0)


def _malloc(size):
    return MemoryPointer(Memory(size), 0)


_allocator = _malloc
_of_thread = None


def set_allocator(allocator=None):
    global _allocator
    _allocator = allocator or _malloc


def get_allocator():
    return _of_thread or _allocator


def _set_thread_local_allocator(allocator):
    global _of_thread
    _of_thread = allocator


def _get_thread_local_allocator():
    return _of_thread


def alloc(size):
    return (_of_thread or _allocator)(size)
