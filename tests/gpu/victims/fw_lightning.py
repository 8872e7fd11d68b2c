"""Trains by Lightning; the first argument selects how. A step keeps one tensor of its forward and one of its backward pass, and prints the
Python lines that made them. The last line of a mode's own code on the stack of backward is marked."""

import logging
import os
import sys
import threading
import warnings

import lightning as L
import torch
from torch.utils.checkpoint import checkpoint

from printing import here, in_backward, leave, lines, result, say

BATCHES, KEPT, LAUNCHED = 6, [], []
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Keep(torch.autograd.Function):
    """Keeps a tensor that its backward makes. A node of a pass by DistributedDataParallel may run on any thread."""

    @staticmethod
    def forward(context, value):
        context.caller = threading.current_thread()
        return value * 2

    @staticmethod
    def backward(context, gradient):
        account = here if threading.get_ident() == context.caller.ident else lambda frame: in_backward(frame, context.caller)
        frames, made = account(sys._getframe()), gradient * 3
        KEPT.append((frames, made))
        return gradient * 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, value):
        value = self.first(value)  # site: lightning_first
        value = torch.nn.functional.gelu(value)  # site: lightning_gelu
        return self.second(value)  # site: lightning_second


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def loss(self, batch):
        value = Keep.apply(self.net(batch))
        return value.exp().mean()  # site: lightning_loss

    def training_step(self, batch, number):
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Manual(Task):
    """Calls backward itself."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, number):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))  # site: lightning_manual
        optimizer.step()


class Checkpointed(Task):
    """Computes the forward pass of its net again within backward."""

    def loss(self, batch):
        value = checkpoint(self.net, batch, use_reentrant=False)  # site: lightning_checkpoint
        return Keep.apply(value).exp().mean()


def fit(task, **options):
    data = torch.utils.data.DataLoader(torch.randn(8 * BATCHES, 64), batch_size=8)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = L.Trainer(max_epochs=1, accelerator="gpu", **{"devices": 1, **options}, **quiet)
    trainer.fit(task, data)  # site: lightning_fit
    LAUNCHED.extend(getattr(trainer.strategy.launcher, "procs", []))


def single():
    fit(Task())


def manual():
    fit(Manual())


def accumulated():
    fit(Task(), accumulate_grad_batches=3)


def checkpointed():
    fit(Checkpointed())


def ddp():
    fit(Task(), strategy="ddp")


def ddp_manual():
    fit(Manual(), strategy="ddp")


def ddp_two():
    """One process for each GPU: the second one is this program again."""
    if torch.cuda.device_count() < 2:
        say("UNSUPPORTED", os.getpid(), "a second GPU")
        sys.exit(0)
    fit(Task(), strategy="ddp", devices=2)


MODES = (single, manual, accumulated, checkpointed, ddp, ddp_manual, ddp_two)
os.environ.setdefault("MASTER_PORT", str(20_000 + os.getpid() % 20_000))
torch.manual_seed(1)
{mode.__name__: mode for mode in MODES}[sys.argv[1]]()
torch.cuda.synchronize()
for frames, made in KEPT:
    lines("kept", made.untyped_storage().data_ptr(), frames)
result("kept", len(KEPT))
if torch.distributed.is_initialized():
    torch.distributed.barrier()
[process.wait() for process in LAUNCHED]
leave()
