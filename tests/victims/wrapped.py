"""A program whose own module wraps the driver, as programs that use ctypes do: two functions between a line and the driver."""

import sys

import wrapped_alloc as alloc


def load_weights():
    alloc.gpu_alloc(64 << 20)


def keep_batch():
    alloc.gpu_alloc(8 << 20)


def make_cache():
    return alloc.DeviceBuffer(32 << 20)


alloc.begin()
load_weights()
make_cache()
for _ in range(5 if sys.argv[1] == "leaking" else 1):
    keep_batch()
