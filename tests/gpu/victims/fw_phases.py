"""PyTorch in phases: a model is trained for a few steps, and each step prints what PyTorch's allocator says of it.

    fw_phases.py ranges             torch.cuda.nvtx
    fw_phases.py record_function    torch.profiler.record_function, emitted as NVTX ranges, with those of every operator
    fw_phases.py client             culeak_phase_begin and culeak_phase_end
    fw_phases.py lightning          Lightning's own loop, whose callbacks push ranges
    fw_phases.py rounds             an engine that sleeps and wakes three times; the second round leaves 3 MiB more
"""

import contextlib
import ctypes
import sys

import torch

from printing import fact, leave, result

STEPS = 4
kept = []


def culeak(function, *arguments):
    """The functions exist only under culeak."""
    found = getattr(ctypes.CDLL(None), function, None)
    if found is None:
        return 0
    found.restype = ctypes.c_uint64
    return found(*arguments)


@contextlib.contextmanager
def nvtx(name):
    torch.cuda.nvtx.range_push(name)
    yield
    torch.cuda.nvtx.range_pop()


@contextlib.contextmanager
def client(name):
    number = culeak("culeak_phase_begin", name.encode())
    yield
    culeak("culeak_phase_end", ctypes.c_uint64(number))


@contextlib.contextmanager
def measured(number, phase):
    """A phase, and PyTorch's own figures at its boundaries. Nothing is allocated between a figure and its boundary."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    fact(f"step_{number}_begin", torch.cuda.memory_allocated())
    with phase:
        yield
    fact(f"step_{number}_end", torch.cuda.memory_allocated())
    fact(f"step_{number}_peak", torch.cuda.max_memory_allocated())


def train(phase):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with phase("epoch"):
        for number in range(STEPS):
            with measured(number, phase("step")):
                loss = model(torch.ones(256, 1024, device="cuda")).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                kept.append(torch.zeros((number + 1) << 20, dtype=torch.uint8, device="cuda"))  # site: phase_leak
                del loss
    result("trained", STEPS)


def lightning():
    try:
        import lightning as L
    except ImportError:
        print("UNSUPPORTED 0 lightning", flush=True)
        leave()

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(512, 512)

        def training_step(self, batch, number):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            fact(f"step_{number}_begin", torch.cuda.memory_allocated())
            with nvtx("step"):
                loss = self.layer(batch[0]).square().mean()
                kept.append(torch.zeros((number + 1) << 20, dtype=torch.uint8, device="cuda"))
            fact(f"step_{number}_end", torch.cuda.memory_allocated())
            fact(f"step_{number}_peak", torch.cuda.max_memory_allocated())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(STEPS * 8, 512)), batch_size=8)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_epochs=1, accelerator="gpu", devices=1, **quiet)
    with nvtx("epoch"):
        trainer.fit(Model(), data)
    result("trained", STEPS)


def rounds():
    torch.zeros(1, device="cuda")
    for number in range(3):
        weights = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
        if number == 2:
            kept.append(torch.zeros(3 << 20, dtype=torch.uint8, device="cuda"))  # site: round_leak
        del weights
        torch.cuda.synchronize()
        fact(f"asleep_{number}", torch.cuda.memory_allocated())
        culeak("culeak_mark", b"asleep")
    result("slept", 3)


mode = sys.argv[1]
if mode == "ranges":
    train(nvtx)
elif mode == "record_function":
    with torch.autograd.profiler.emit_nvtx():
        train(torch.profiler.record_function)
elif mode == "client":
    train(client)
elif mode == "lightning":
    lightning()
else:
    rounds()
leave()
