"""A PyTorch program that dumps its allocator's own snapshot, prints what it holds, and ends."""

import sys

import torch

from printing import fact, leave, result

torch.cuda.memory._record_memory_history(stacks="python")


def hold_weights():
    return [torch.empty(1 << 20, device="cuda") for _ in range(6)]  # 4 MiB each


def pass_by():
    return float(torch.ones(3 << 20, device="cuda").sum())


kept = hold_weights()
passed = pass_by()
torch.cuda.synchronize()
torch.cuda.memory._dump_snapshot("dump.pickle")
fact("allocated", torch.cuda.memory_allocated())
fact("reserved", torch.cuda.memory_reserved())
result("sum", passed)
sys.stdout.flush()
leave()
