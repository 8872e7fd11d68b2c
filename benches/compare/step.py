"""One transformer training step in PyTorch, timed: the total cost of recording every tensor.

    step.py plain | recorder | switched | lines [DEVICE] [STEPS] [PEEK]

prints `STEP milliseconds events`: the median of the steps, and how many blocks the allocator allocated in one. `plain` also
prints `PAIR nanoseconds 1`: the median of `torch.empty` and `del` of 1,000 floats. `recorder` times the same with PyTorch's own
memory recorder (native and Python stacks) off and on alternately, and prints `STEP`, `RECORDED`, `PAIR` and `RECORDED_PAIR`.
`switched`, under switch.so, times them bare, under culeak, after a function that does nothing and after reading the clock by
turns, and prints `WAY STEP name milliseconds ratio` and `WAY PAIR name nanoseconds ratio`, where the ratio is the median of those
to the bare step of the same turn. `lines` does so with a step under culeak without and with the lines of backward, and a bare one; ratios
are to the first of these. PEEK is the offset of `stacks::forward::PEEK` in culeak's library: where that is 0, no forward line is noted.
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


class Lines:
    """Switches the lines of backward off and on in culeak's library."""

    def __init__(self, offset):
        ctypes.CDLL(None).switch_to(WAYS["culeak"])
        step()  # with its first block, culeak looks for these functions
        start = min(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if "/libculeak" in line)
        self.peek = ctypes.c_size_t.from_address(start + int(offset, 16))
        self.known = self.peek.value
        assert self.known, "culeak has not found the functions of PyTorch that count nodes"

    def switch_to(self, way):
        self.peek.value = 0 if way == WAYS["without lines"] else self.known
        ctypes.CDLL(None).switch_to(way)


# As in switch.c.
WAYS = {"bare": 0, "culeak": 1, "empty hook": 2, "clock only": 3, "without lines": 4}


def by_turns(word, turns, measure, ways, switch_to):
    """Times each of these ways of switch.so in each turn, every other turn in the opposite order; ratios are to the first."""
    seen = {name: [] for name in ways}
    for turn in range(turns):
        for name in ways[:: 1 if turn % 2 else -1]:
            switch_to(WAYS[name])
            seen[name].append(measure())
    switch_to(WAYS["bare"])
    for name, taken in seen.items():
        ratios = [way / first for way, first in zip(taken, seen[ways[0]])]
        print("WAY", word, name.replace(" ", "_"), statistics.median(taken), statistics.median(ratios))


timed(max(steps // 4, 1))
before = handed_out()
step()
events = handed_out() - before
if mode == "plain":
    print("STEP", statistics.median(timed(steps)), events)
    print("PAIR", statistics.median(pairs(4 * steps)), 1)
elif mode in ("switched", "lines"):
    # The first of three steps in a row is not counted: it frees what steps of another way have left.
    middle = lambda: statistics.median(timed(3)[1:])
    if mode == "lines":
        by_turns("STEP", steps, middle, ["without lines", "culeak", "bare"], Lines(sys.argv[4]).switch_to)
    else:
        ways, switch_to = ["bare", "culeak", "empty hook", "clock only"], ctypes.CDLL(None).switch_to
        by_turns("STEP", steps, middle, ways, switch_to)
        by_turns("PAIR", 4 * steps, lambda: pairs(1)[0], ways, switch_to)
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
