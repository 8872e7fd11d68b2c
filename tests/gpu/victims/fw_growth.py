"""PyTorch in training: a loss that stays with its graph, a cache that fills, and temporary batches; each epoch has a mark.

    fw_growth.py                 24 epochs, then the end
    fw_growth.py watched         12 epochs, READY, then nothing until standard input has a line
                                    with PLUGGABLE=LIBRARY, through the functions of a pluggable allocator
    fw_growth.py watched and-grow   … READY, then ten more epochs a second until then
"""

import ctypes
import os
import sys
import threading

import torch

from printing import fact, leave

EPOCHS, CACHED = 24, 6
history, cache = [], {}


def mark(name):
    """The symbol exists only under culeak."""
    try:
        ctypes.CDLL(None).culeak_mark(name.encode())
    except AttributeError:
        pass


def keep_loss():
    history.append(torch.zeros(4 << 20, dtype=torch.uint8, device="cuda"))  # site: growth_leak


def look_up(epoch):
    key = epoch % CACHED
    if key not in cache:
        cache[key] = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")  # site: growth_cache


def step(weights, epoch):
    # All large sizes are multiples of 4 MiB, so that PyTorch's cache splits a block exactly or has none that fits.
    batch = torch.zeros((4 + 4 * (epoch % 3)) << 20, dtype=torch.uint8, device="cuda")  # site: growth_batch
    weights += batch[: weights.numel()]
    return batch


def train(weights, epoch):
    batch = step(weights, epoch)
    keep_loss()
    look_up(epoch)
    mark(f"epoch {epoch}")
    del batch


if library := os.environ.get("PLUGGABLE"):
    torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(library, "my_malloc", "my_free"))
weights = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
if "watched" not in sys.argv:
    for epoch in range(EPOCHS):
        train(weights, epoch)
    fact("allocated", torch.cuda.memory_allocated())
    leave()

for epoch in range(EPOCHS // 2):
    train(weights, epoch)
if not library:
    fact("allocated", torch.cuda.memory_allocated())
print("READY", os.getpid(), flush=True)
quit_requested = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), quit_requested.set()), daemon=True).start()
if "and-grow" in sys.argv:
    while not quit_requested.wait(0.1):
        train(weights, epoch := epoch + 1)
quit_requested.wait()
leave()
