"""PyTorch programs that hold tensors when the script ends; the first argument selects one.

The last act of each is to print what PyTorch's allocator holds and what it held at most. What a program holds is referenced by
module globals, so it is still held when the interpreter begins to finalize. A second argument selects another way to end:
`underscore_exit`, `sigkill`, or `repaired`, in which the program drops what it leaked first.

`held_LABEL` is what one source line holds, marked `site: LABEL`. The first seven programs multiply no matrices, since cuBLAS's
workspace is a tensor that the interpreter does not free. In others it is, with 32 MiB, less than what is held."""

import concurrent.futures
import contextlib
import gc
import os
import signal
import sys
import threading

from printing import fact, needs

needs("torch")
import torch

DEVICE = "cuda"
held = []


@contextlib.contextmanager
def line(label):
    """Everything that is allocated in this block and stays is allocated by one line."""
    before = torch.cuda.memory_allocated()
    yield
    fact(f"held_{label}", torch.cuda.memory_allocated() - before)


# ---- seven ways to keep tensors by accident ----


def growing_list():
    """Losses that keep their graphs."""
    weight = torch.ones(1000, device=DEVICE, requires_grad=True)
    with line("ends_list"):
        for _ in range(20):
            held.append((weight * 2).exp().sum())  # site: ends_list


def hook_cache():
    """A forward hook that keeps every output."""
    model = torch.nn.Sequential(torch.nn.LayerNorm(3000), torch.nn.GELU()).to(DEVICE)
    outputs = []
    model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    held.extend([model, outputs])
    data = torch.ones(8, 3000, device=DEVICE)
    with line("ends_hook"):
        for _ in range(10):
            model(data)  # site: ends_hook


class Node:
    pass


def cycle():
    """Reference cycles, and nothing that collects them."""
    gc.disable()
    with line("ends_cycle"):
        for _ in range(10):
            node = Node()
            node.itself = node
            node.tensor = torch.ones(77_777, device=DEVICE)  # site: ends_cycle
        del node


def thread():
    """The results of a worker thread."""
    def work(size):
        return torch.ones(size, device=DEVICE)  # site: ends_thread

    pool = concurrent.futures.ThreadPoolExecutor(1)
    torch.ones(1, device=DEVICE)
    with line("ends_thread"):
        for size in range(10_000, 60_000, 10_000):
            held.append(pool.submit(work, size))
            held[-1].result()
    held.append(pool)


def graph_pool():
    """The pool of a captured graph."""
    static = torch.ones(100, 100, device=DEVICE)
    static.exp()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        inside = static.exp()
        with line("ends_graph"):
            for _ in range(5):
                held.append(inside.exp())  # site: ends_graph
    captured.replay()
    torch.cuda.synchronize()
    held.append(captured)


def generator():
    """A generator that is suspended for ever, with what its frame refers to."""
    def batches():
        data = [torch.ones(50_000, device=DEVICE) for _ in range(6)]  # site: ends_generator
        while True:
            yield data[0].shape

    with line("ends_generator"):
        held.append(batches())
        next(held[0])


def oom_survivor():
    """An exception that is kept, whose traceback refers to the frames that it passed."""
    def too_much():
        parts = [torch.ones(60_000, device=DEVICE) for _ in range(6)]  # site: ends_oom
        return parts, torch.empty(1 << 46, dtype=torch.uint8, device=DEVICE)

    with line("ends_oom"):
        try:
            too_much()
        except torch.cuda.OutOfMemoryError as error:
            held.append(error)


# ---- others ----


def waiting_thread():
    """A daemon thread that still waits when the script ends: the interpreter never frees what its frame refers to."""
    allocated = threading.Event()

    def work():
        data = [torch.ones(40_000, device=DEVICE) for _ in range(5)]  # site: ends_waiting
        allocated.set()
        threading.Event().wait()
        print(data)

    with line("ends_waiting"):
        threading.Thread(target=work, daemon=True).start()
        allocated.wait()


def model_only():
    """No leak: a model that a global refers to."""
    with line("ends_model"):
        held.append(torch.nn.Sequential(*(torch.nn.LayerNorm(60_000) for _ in range(12))).to(DEVICE))  # site: ends_model


def training():
    """A training loop with backward, which runs on another thread, and AdamW, whose peak is neither its begin nor its end."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for size in (64, 256, 128):
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.ones(size, 512, device=DEVICE)) ** 2).mean().backward()
            optimizer.step()
    held.extend([model, optimizer])


def transformer():
    """transformers: a small language model with random weights, and the key-value caches of four requests."""
    needs("transformers")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_head=4, n_embd=256, vocab_size=128, n_positions=128)).to(DEVICE).eval()
    words = torch.ones(32, 128, dtype=torch.long, device=DEVICE)
    with torch.no_grad():
        model(words, use_cache=False)
        with line("ends_kv_cache"):
            for _ in range(4):
                held.append(model(words, use_cache=True).past_key_values)  # site: ends_kv_cache
    held.append(model)


def lightning():
    """lightning: a module that keeps the outputs of its steps."""
    needs("lightning")
    import lightning.pytorch
    import logging

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.pytorch.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 16384)
            self.outputs = []

        def training_step(self, batch, number):
            projected = self.layer(batch)
            self.outputs.append(projected.exp())  # site: ends_lightning
            return self.outputs[-1].mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    module = Module()
    data = torch.utils.data.DataLoader(torch.ones(2560, 64), batch_size=256)
    trainer = lightning.pytorch.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(module, data)
    held.extend([module, trainer])
    fact("held_ends_lightning", sum(blocks(output) for output in module.outputs))


def blocks(tensor):
    """The bytes of the block of a tensor that is smaller than 1 MiB or a multiple of 2 MiB."""
    return (tensor.numel() * tensor.element_size() + 511) // 512 * 512


PROGRAMS = (growing_list, hook_cache, cycle, thread, graph_pool, generator, oom_survivor, waiting_thread, model_only, training, transformer, lightning)


def last_act(how=None):
    torch.cuda.synchronize()
    if how == "repaired":
        held.clear()
        gc.collect()
    fact("end_bytes", torch.cuda.memory_allocated())
    fact("peak_bytes", torch.cuda.max_memory_allocated())
    if how == "underscore_exit":
        os._exit(0)
    if how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    {f.__name__: f for f in PROGRAMS}[sys.argv[1]]()
    last_act(*sys.argv[2:])
