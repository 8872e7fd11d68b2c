"""PyTorch in training that stops between two steps and prints its allocator's totals, so that its ledger can be read from outside."""

import os
import sys

import torch

from printing import fact

kept = []


def training_step(model, data):
    kept.append(model(data) @ data.T)  # site: ledger_leak
    kept[-1].sum().backward()


def ask_for_too_much():
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")  # site: ledger_too_much
    except torch.OutOfMemoryError:
        print("FAILED", flush=True)


model = torch.nn.Linear(4096, 4096, device="cuda")
data = torch.randn(4096, 4096, device="cuda")
for _ in range(3):
    training_step(model, data)
gone = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(9)]
del gone[::2]
torch.cuda.synchronize()
if "too-much" in sys.argv:
    ask_for_too_much()
fact("allocated", torch.cuda.memory_allocated())
fact("reserved", torch.cuda.memory_reserved())
free, total = torch.cuda.mem_get_info()
fact("used", total - free)
print("READY", os.getpid(), flush=True)
for line in sys.stdin:
    if line.strip() == "quit":
        break
