"""Real programs that keep more than they should; the first argument selects one. Each names the global that keeps it."""

import functools
import gc
import logging
import os
import sys
import time

import torch

from holding import holds, keep, questions
from printing import needs

DEVICE = "cuda"


def base(tensor):
    return tensor.untyped_storage().data_ptr()


def small_gpt():
    needs("transformers")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=128, vocab_size=128, n_positions=128)).to(DEVICE)


def tensors_of(cache):
    """The keys and values of a cache, in any version of transformers."""
    if hasattr(cache, "layers"):
        return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return [tensor for pair in cache for tensor in pair[:2]]


def kv_caches():
    """A server that keeps the key-value caches of finished requests."""
    model = small_gpt().eval()
    words = torch.ones(8, 64, dtype=torch.long, device=DEVICE)
    sessions = {}
    with torch.no_grad():
        for number in range(4):
            sessions[f"user {number}"] = model(words, use_cache=True).past_key_values
    for cache in sessions.values():
        for tensor in tensors_of(cache):
            holds("kv_cache", base(tensor), "__main__.sessions", "[*]", "Cache|[*]")
    for parameter in model.parameters():
        holds("parameter", base(parameter), "__main__.model")
    keep("model", model)
    keep("sessions", sessions)


def generated():
    """A server that keeps what `generate()` returned for each request, with its cache."""
    model = small_gpt().eval()
    words = torch.ones(8, 16, dtype=torch.long, device=DEVICE)
    answers = [model.generate(words, max_new_tokens=8, do_sample=False, pad_token_id=0, return_dict_in_generate=True) for _ in range(4)]
    for answer in answers:
        holds("sequences", base(answer.sequences), "__main__.answers", "[*]")
        for tensor in tensors_of(answer.past_key_values):
            holds("kv_cache", base(tensor), "__main__.answers", "[*]", "Cache|[*]")
    for parameter in model.parameters():
        holds("parameter", base(parameter), "__main__.model")
    keep("model", model)
    keep("answers", answers)


def logits():
    """A training loop that keeps the logits of each step, with their graphs."""
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.ones(8, 64, dtype=torch.long, device=DEVICE)
    history = []
    for _ in range(3):
        optimizer.zero_grad()
        result = model(words, labels=words)
        result.loss.backward()
        optimizer.step()
        history.append(result.logits)
    for kept in history:
        holds("logits", base(kept), "__main__.history", "[*]")
    keep("model", model)
    keep("optimizer", optimizer)
    keep("history", history)


def trainer():
    """transformers' Trainer with a callback that keeps the logits."""
    needs("transformers", "accelerate")
    import tempfile

    from transformers import Trainer, TrainingArguments

    seen = []

    class KeepsLogits(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **_):
            outputs = model(**inputs)
            seen.append(outputs.logits.detach())
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    model = small_gpt()
    rows = [{"input_ids": torch.ones(16, dtype=torch.long), "labels": torch.ones(16, dtype=torch.long)} for _ in range(12)]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=4, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True
    )
    running = KeepsLogits(model=model, args=arguments, train_dataset=rows)
    running.train()
    for kept in seen:
        holds("logits", base(kept), "__main__.seen", "[*]")
    keep("model", model)
    keep("seen", seen)


def lightning():
    """A module that appends its losses, with their graphs."""
    needs("lightning")
    import lightning.pytorch

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.pytorch.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 8192)
            self.losses = []

        def training_step(self, batch, number):
            activations = self.layer(batch).exp()
            loss = activations.mean()
            self.losses.append(loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    module = Module()
    data = torch.utils.data.DataLoader(torch.ones(1280, 64), batch_size=256)
    options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    running = lightning.pytorch.Trainer(accelerator="gpu", devices=1, max_epochs=1, **options)
    running.fit(module, data)
    for loss in module.losses:
        holds("loss", base(loss), "__main__.module", ".losses", "[*]")
    keep("module", module)


def peft():
    """A loop that wraps the model in one adapter after another."""
    needs("transformers", "peft")
    from peft import LoraConfig, get_peft_model

    model = small_gpt()
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    for number in range(3):
        adapted.add_adapter(f"adapter_{number}", LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    adapted.to(DEVICE)
    for name, parameter in adapted.named_parameters():
        if "adapter_" in name:
            holds("adapter", base(parameter), "__main__.adapted", "lora_|[*]|_modules")
    del model
    keep("adapted", adapted)


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(100, 3000)

    @functools.lru_cache(maxsize=None)  # noqa: B019: that is the leak
    def features(self, length):
        return self.layer(torch.ones(length, 100, device=DEVICE))


def cached_method():
    """An lru_cache on a method keeps each model that ever called it."""
    for length in (3, 5):
        model = Encoder().to(DEVICE)
        holds("features", base(model.features(length)), "__main__.Encoder", "features")
        holds("model", base(model.layer.weight), "__main__.Encoder", "features", "layer")
        del model


def logged_error():
    """A logger that keeps the records of errors, with their tracebacks."""
    records = []

    class Handler(logging.Handler):
        def emit(self, record):
            records.append(record)

    def step(activations):
        raise RuntimeError("shapes differ")

    logger = logging.getLogger("training")
    logger.propagate = False
    logger.addHandler(Handler())
    for number in range(3):
        activations = torch.ones(5000 + number, device=DEVICE)
        holds("activations", base(activations), "__main__.records", "[*]", "exc_info", "local activations")
        try:
            step(activations)
        except RuntimeError:
            logger.exception("step %d failed", number)
        del activations
    keep("records", records)


def rebuilt_ddp():
    """DistributedDataParallel around the same model again and again."""
    # No port: the program runs twice at once, with a recording and without.
    backend = "nccl" if torch.distributed.is_nccl_available() else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = torch.nn.Linear(300, 300).to(DEVICE)
    wrappers = []
    for _ in range(3):
        wrapper = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
        wrapper(torch.ones(4, 300, device=DEVICE)).sum().backward()
        wrappers.append(wrapper)
    holds("weight", base(model.weight), "__main__.")
    holds("gradient", base(model.weight.grad), "__main__.|reducer|Reducer")
    keep("model", model)
    keep("wrappers", wrappers)


class Batch:
    """A batch that the thread of the loader moves to the device, which a loader allows for classes of the program."""

    def __init__(self, rows):
        self.rows = torch.stack(rows)

    def pin_memory(self):
        self.rows = self.rows.to(DEVICE)
        return self


def loader():
    """A DataLoader whose batches wait in its queue, on the device already."""
    data = torch.utils.data.DataLoader(torch.ones(64, 3000), batch_size=8, num_workers=1, prefetch_factor=2, pin_memory=True, collate_fn=Batch)
    batches = iter(data)
    next(batches)
    deadline = time.monotonic() + 60
    while batches._data_queue.qsize() < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    for _, batch in list(batches._data_queue.queue):
        # The loader's thread has the queue, too.
        holds("prefetched", base(batch.rows), "__main__.batches|_pin_memory_loop", "queue", "[*]", "Batch", ".rows")
    keep("batches", batches)
    # The end of the iterator ends its thread, which frees more than the batches. So it has a second holder.
    keep("epoch", [batches])


PROGRAMS = (kv_caches, generated, logits, trainer, lightning, peft, cached_method, logged_error, rebuilt_ddp, loader)

if __name__ == "__main__":
    gc.collect()
    {f.__name__: f for f in PROGRAMS}[sys.argv[1]]()
    gc.collect()
    torch.cuda.synchronize()
    of_all = lambda measure: lambda: sum(measure(device) for device in range(torch.cuda.device_count()))
    questions(of_all(torch.cuda.memory_allocated), of_all(torch.cuda.memory_reserved))
