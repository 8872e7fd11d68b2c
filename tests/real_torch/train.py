"""Blocks of a model and their activations, from PyTorch's allocator: train.py PROGRAM. Run by run.sh."""

import ctypes
import sys

take = ctypes.CDLL(sys.argv[1]).take
take.argtypes = [ctypes.c_size_t]
MIB = 1 << 20


class Block:
    def __init__(self):
        self.weight = take(64 * MIB)

    def forward(self, batch):
        self.activation = take(batch * 9 * MIB)


blocks = [Block() for _ in range(12)]
for block in blocks:
    block.forward(10)
