"""Stand-ins for tensors: a ctypes object points to a structure, that to another, and that to GPU memory, as PyTorch's Tensor,
TensorImpl and StorageImpl do. The memory is freed with the object."""

import ctypes

driver = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.malloc_usable_size.restype = ctypes.c_size_t
libc.malloc_usable_size.argtypes = [ctypes.c_void_p]
driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]

# Bytes of each live block, by its address as text: a number equal to an address counts as a holder.
live = {}


def begin():
    driver.cuInit(0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def allocate(size):
    """GPU memory; the caller must not keep the number."""
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    live[str(address.value)] = size
    try:
        return address.value
    finally:
        address.value = 0


def structure(size, offset, pointer):
    """Heap memory with one pointer in it, and none left from an earlier owner."""
    memory = libc.malloc(size)
    ctypes.memset(memory, 0, libc.malloc_usable_size(memory))
    ctypes.c_uint64.from_address(memory + offset).value = pointer
    return memory


def implementation(size):
    """The two native structures above a new block, and the block's address."""
    address = allocate(size)
    return structure(96, 24, structure(64, 24, address)), address


class Tensor(ctypes.Structure):
    """Sixteen bytes, which lie in the object itself."""

    _fields_ = [("impl", ctypes.c_uint64), ("version", ctypes.c_uint64)]
    __hash__ = object.__hash__

    # Module globals may be gone at exit: everything it needs is an argument.
    def __del__(self, at=ctypes.c_uint64.from_address, free=libc.free, free_block=driver.cuMemFree_v2, live=live):
        if self.impl:
            storage = at(self.impl + 24).value
            address = at(storage + 24).value
            at(storage + 24).value = at(self.impl + 24).value = 0
            free(storage)
            free(self.impl)
            self.impl = 0
            free_block(address)
            live.pop(str(address))


def tensor(size=1000):
    made = Tensor()
    made.impl, _ = implementation(size)
    return made


def address_of(made):
    return ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(made.impl + 24).value + 24).value
