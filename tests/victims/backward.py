"""Two operators of a forward pass, and the backward pass of each, through stand-ins for PyTorch: libc10_cuda, libc10, libtorch_cpu, the driver."""

import ctypes
import sys

ALLOCATOR, C10, ENGINE, DRIVER = sys.argv[1:]
driver = ctypes.CDLL(DRIVER, mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(C10)
allocator, engine = ctypes.CDLL(ALLOCATOR), ctypes.CDLL(ENGINE)
engine.forward.restype = ctypes.c_uint64
execute = engine._ZN5torch8autograd6Engine7executeEv
execute.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
NODE = ctypes.cast(allocator.stand_in_malloc, ctypes.c_void_p)
BYTES = iter(range(512, 512 * 100, 512))


def operator():
    """An operator that requires a gradient: its node is made first, and then it allocates."""
    number = engine.forward()
    allocator.stand_in_malloc(next(BYTES))
    return number


def first_layer():
    return operator()


def second_layer():
    return operator()


def views(count):
    """Operators that allocate nothing, and one that does. The number of the first."""
    first = engine.forward()
    for _ in range(count - 1):
        engine.forward()
    operator()
    return first


def backward(number, on_caller):
    execute(number, NODE, next(BYTES), on_caller)


def main():
    context = ctypes.c_void_p()
    assert not driver.cuInit(0) and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    assert not driver.cuCtxSetCurrent(context)
    # With the first tensor the recorder finds PyTorch.
    allocator.stand_in_malloc(next(BYTES))
    numbers = first_layer(), second_layer()
    # Memory without an operator of its own does not replace the second one's.
    allocator.stand_in_malloc(next(BYTES))
    for on_caller in (0, 1):
        for number in reversed(numbers):
            backward(number, on_caller)
    backward(1000, 0)
    for count in (16, 17):
        backward(views(count), 0)
    backward(2**64 - 1, 0)
    print("uses of a node", engine.uses())


main()
