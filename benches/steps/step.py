"""Training steps of a transformer on the CPU, whose blocks are reported as a GPU's; started by run.sh.

    step.py LIBRARY WALK STEPS NAME

LIBRARY is allocator.cpp, built; WALK is the offset, in the recorder's library, of the function that walks a stack which was not known
again, or 0. Backward runs on a thread that does not hold the GIL, as on a GPU. Prints a row of the table: what a report took in STEPS steps,
and, in as many further steps, how many instructions it executed and how many stacks were walked.
"""

import ctypes
import os
import statistics
import sys
import threading

import torch

library, walk, steps, name = sys.argv[1], int(sys.argv[2], 16), int(sys.argv[3]), sys.argv[4]
REPORTED, TIMED, STEPPED = 1, 2, 3


class Event(ctypes.Structure):
    _fields_ = [(field, ctypes.c_int64) for field in ("change", "nanoseconds", "instructions", "has_walked")]


if walk:
    walk += min(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if "/libculeak" in line)
allocator = ctypes.CDLL(library)
allocator.noted.restype = ctypes.c_size_t
allocator.install(ctypes.c_size_t(walk))
torch.set_num_threads(1)
torch.manual_seed(1)
# Small, so that most of the time is PyTorch's own, as on a GPU, whose kernels run elsewhere.
layer = torch.nn.TransformerEncoderLayer(64, 8, 256, batch_first=True, dropout=0.1)
model = torch.nn.TransformerEncoder(layer, 6)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
data = torch.randn(2, 8, 64)
asked, done, loss = threading.Semaphore(0), threading.Semaphore(0), [None]


def backward():
    while True:
        asked.acquire()
        loss.pop().backward()
        done.release()


def step():
    optimizer.zero_grad()
    loss.append((model(data) ** 2).mean())
    asked.release()
    done.acquire()
    optimizer.step()


def events(mode, count):
    allocator.begin(mode)
    for _ in range(count):
        step()
    first = ctypes.POINTER(Event)()
    noted = allocator.noted(ctypes.byref(first))
    taken = [(first[i].change, first[i].nanoseconds, first[i].instructions, first[i].has_walked) for i in range(noted)]
    allocator.begin(REPORTED)
    return taken


loss.clear()
threading.Thread(target=backward, daemon=True).start()
# A stack is remembered at its second sighting. All steps are called from one place, since another would be another stack.
_, timed, stepped = [events(mode, count) for mode, count in ((REPORTED, 50), (TIMED, steps), (STEPPED, steps))]
cells = [name, f"{len(timed) / steps:.0f}"]
for sign in (1, -1):
    for figure, of in ((1, timed), (2, stepped)):
        cells.append(f"{statistics.median(event[figure] for event in of if event[0] * sign > 0 and event[figure]):.0f}")
stacks, walks = sum(event[0] > 0 for event in stepped), sum(event[3] for event in stepped)
has_all_stacks = walk and "CULEAK_SAMPLE" not in os.environ
cells += [f"{100 * (1 - walks / stacks):.2f} %" if has_all_stacks else "", f"{1000 * walks / len(stepped):.1f}" if walk else ""]
print("| " + " | ".join(cells) + " |", flush=True)
