"""A stand-in for the part of PyTorch 2.15 that the adapters use, on lists of numbers.

A copy from a tensor on the device to pinned memory arrives only when `arrive` is called, as on a GPU that is busy.
"""

from . import _C, cuda

__version__ = "2.15.0"
__all__ = ["_C", "cuda"]

_on_the_way = []


def arrive():
    while _on_the_way:
        target, numbers = _on_the_way.pop(0)
        target.storage[target.offset : target.offset + target.count] = numbers


class Array:
    """What `Tensor.numpy` returns."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __eq__(self, number):
        return Array([n == number for n in self.numbers])

    def any(self):
        return any(self.numbers)

    def ravel(self):
        return self

    def tolist(self):
        return list(self.numbers)


class Tensor:
    """One dimension, without gaps."""

    def __init__(self, storage, offset, count, is_cuda):
        self.storage, self.offset, self.count, self.is_cuda = storage, offset, count, is_cuda

    shape = property(lambda self: (self.count,))
    dtype = "int64"

    def __len__(self):
        return self.count

    def __getitem__(self, where):
        start, stop, step = where.indices(self.count)
        if step != 1:
            return tensor(self.tolist()[where], self.is_cuda)
        return Tensor(self.storage, self.offset + start, max(0, stop - start), self.is_cuda)

    def __floordiv__(self, number):
        return tensor([n // number for n in self.tolist()], self.is_cuda)

    def numel(self):
        return self.count

    def dim(self):
        return 1

    def stride(self, _):
        return 1

    def storage_offset(self):
        return self.offset

    def tolist(self):
        return self.storage[self.offset : self.offset + self.count]

    def numpy(self):
        assert not self.is_cuda, "memory of the device"
        return Array(self.tolist())

    def fill_(self, number):
        self.storage[self.offset : self.offset + self.count] = [number] * self.count
        return self

    def copy_(self, other, non_blocking=False):
        assert non_blocking and other.is_cuda and not self.is_cuda
        _on_the_way.append((self, other.tolist()))
        return self


def tensor(numbers, is_cuda=False):
    return Tensor(list(numbers), 0, len(numbers), is_cuda)


def empty(shape, dtype="int64", pin_memory=False):
    assert pin_memory
    return tensor([0] * shape[0])


def as_strided(base, size, stride, offset):
    assert stride == (1,) and 0 <= offset and offset + size[0] <= len(base.storage)
    return Tensor(base.storage, offset, size[0], base.is_cuda)


def cat(tensors):
    return tensor([n for part in tensors for n in part.tolist()], tensors[0].is_cuda)
