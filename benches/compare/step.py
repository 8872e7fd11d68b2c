"""One transformer training step in PyTorch, timed: the total cost of recording every tensor.

    step.py plain | recorder | switched [DEVICE] [STEPS]

prints `STEP milliseconds events`: the median of the steps, and how many blocks the allocator allocated in one. `plain` also
prints `PAIR nanoseconds 1`: the median of `torch.empty` and `del` of 1,000 floats. `recorder` times the same with PyTorch's own
memory recorder (native and Python stacks) off and on alternately, and prints `STEP`, `RECORDED`, `PAIR` and `RECORDED_PAIR`.
`switched`, under switch.so, times them bare, under culeak, after a function that does nothing and after reading the clock by
turns, and prints `WAY STEP name milliseconds ratio` and `WAY PAIR name nanoseconds ratio`, where the ratio is the median of those
to the bare step of the same turn.
"""

import ctypes
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


def by_turns(word, turns, measure):
    """Times each way of switch.so in each turn, every other turn in the opposite order."""
    ways = {"bare": 0, "culeak": 1, "empty hook": 2, "clock only": 3}
    seen = {name: [] for name in ways}
    for turn in range(turns):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            ctypes.CDLL(None).switch_to(ways[name])
            seen[name].append(measure())
    ctypes.CDLL(None).switch_to(0)
    for name, taken in seen.items():
        ratios = [way / bare for way, bare in zip(taken, seen["bare"])]
        print("WAY", word, name.replace(" ", "_"), statistics.median(taken), statistics.median(ratios))


timed(max(steps // 4, 1))
before = handed_out()
step()
events = handed_out() - before
if mode == "plain":
    print("STEP", statistics.median(timed(steps)), events)
    print("PAIR", statistics.median(pairs(4 * steps)), 1)
elif mode == "switched":
    # The first of three steps in a row is not counted: it frees what steps of another way have left.
    by_turns("STEP", steps, lambda: statistics.median(timed(3)[1:]))
    by_turns("PAIR", 4 * steps, lambda: pairs(1)[0])
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
