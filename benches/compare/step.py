"""One transformer training step in PyTorch, timed: the total cost of recording every tensor.

    step.py plain | recorder [DEVICE] [STEPS]

prints `STEP milliseconds events`: the median of the steps, and how many blocks the allocator allocated in one. `plain` also
prints `PAIR nanoseconds 1`: the median of `torch.empty` and `del` of 1,000 floats. `recorder` times the same with PyTorch's own
memory recorder (native and Python stacks) off and on alternately, and prints `STEP`, `RECORDED`, `PAIR` and `RECORDED_PAIR`.
"""

import statistics
import sys
import time

import torch

mode, device, steps = sys.argv[1], (sys.argv[2:] or ["cuda"])[0], int((sys.argv[3:] or [60])[0])
cuda = device == "cuda"

torch.manual_seed(1)
layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, dropout=0.1)
model = torch.nn.TransformerEncoder(layer, 6 if cuda else 2).to(device)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
data = torch.randn(8, 64, 256, device=device)


def step():
    optimizer.zero_grad()
    (model(data) ** 2).mean().backward()
    optimizer.step()
    if cuda:
        torch.cuda.synchronize()


def handed_out():
    return torch.cuda.memory_stats().get("allocation.all.allocated", 0) if cuda else 0


def timed(count):
    """Milliseconds of each step."""
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        taken.append(1e3 * (time.perf_counter() - started))
    return taken


def pairs(count):
    """Nanoseconds of a tensor that is allocated and freed, in chunks of 250."""
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        for _ in range(250):
            torch.empty(1000, device=device)
        taken.append(1e9 * (time.perf_counter() - started) / 250)
    return taken


timed(max(steps // 4, 1))
before = handed_out()
step()
events = handed_out() - before
if mode == "plain":
    print("STEP", statistics.median(timed(steps)), events)
    print("PAIR", statistics.median(pairs(4 * steps)), 1)
else:
    of_steps, of_pairs = ([], []), ([], [])
    for _ in range(4):
        for nth, switch in enumerate(({"enabled": None}, {"stacks": "all"})):
            torch.cuda.memory._record_memory_history(**switch)
            of_steps[nth].extend(timed(max(steps // 4, 1)))
            of_pairs[nth].extend(pairs(steps))
    torch.cuda.memory._record_memory_history(enabled=None)
    for word, times in zip(("STEP", "RECORDED"), of_steps):
        print(word, statistics.median(times), events)
    for word, times in zip(("PAIR", "RECORDED_PAIR"), of_pairs):
        print(word, statistics.median(times), 1)
