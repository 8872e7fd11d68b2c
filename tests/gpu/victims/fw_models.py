"""Three training steps of a small model of each usual kind; the first argument selects one. With `kept` behind it, the script ends with the
model, its optimizer and the graph of a further step."""

import os
import sys
import tempfile

import torch

from printing import leave, result

DEVICE = "cuda"
STEPS = 3
kept = []


def steps(model, inputs, loss_of, parameters=None):
    """`loss_of`: the loss of what the model returns."""
    optimizer = torch.optim.AdamW(parameters or [p for p in model.parameters() if p.requires_grad])
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(**inputs()))
        loss.backward()
        optimizer.step()
    if sys.argv[2:] == ["kept"]:
        kept.extend([model, optimizer, loss_of(model(**inputs()))])


def tokens():
    ids = torch.randint(0, 1000, (4, 64), device=DEVICE)
    return {"input_ids": ids, "labels": ids}


def pictures(size):
    return lambda: {"pixel_values": torch.randn(4, 3, size, size, device=DEVICE), "labels": torch.zeros(4, dtype=torch.long, device=DEVICE)}


def small_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=128, n_layer=3, n_head=4)).to(DEVICE)


def gpt2():
    steps(small_gpt2(), tokens, lambda out: out.loss)


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=96, num_hidden_layers=3, num_attention_heads=3, intermediate_size=384, image_size=64, patch_size=8)
    steps(ViTForImageClassification(config).to(DEVICE), pictures(64), lambda out: out.loss)


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[1, 1, 1, 1])
    steps(ResNetForImageClassification(config).to(DEVICE), pictures(64), lambda out: out.loss)


class Block(torch.nn.Module):
    def __init__(self, given, made):
        super().__init__()
        self.norm, self.conv, self.time = torch.nn.GroupNorm(8, given), torch.nn.Conv2d(given, made, 3, padding=1), torch.nn.Linear(64, made)

    def forward(self, value, time):
        value = self.conv(torch.nn.functional.silu(self.norm(value)))
        return value + self.time(time)[:, :, None, None]


class UNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.Conv2d(32, 3, 3, padding=1)
        self.down = torch.nn.ModuleList([Block(32, 64), Block(64, 128)])
        self.middle = Block(128, 128)
        self.up = torch.nn.ModuleList([Block(256, 64), Block(128, 32)])

    def forward(self, value, time):
        value, kept = self.first(value), []
        for block in self.down:
            value = block(value, time)
            kept.append(value)
            value = torch.nn.functional.avg_pool2d(value, 2)
        value = self.middle(value, time)
        for block in self.up:
            value = torch.nn.functional.interpolate(value, scale_factor=2)
            value = block(torch.cat([value, kept.pop()], 1), time)
        return self.last(value)


def unet():
    inputs = lambda: {"value": torch.randn(4, 3, 32, 32, device=DEVICE), "time": torch.randn(4, 64, device=DEVICE)}
    steps(UNet().to(DEVICE), inputs, lambda out: torch.nn.functional.mse_loss(out, torch.randn_like(out)))


def moe():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4)
    steps(MixtralForCausalLM(config).to(DEVICE), tokens, lambda out: out.loss)


def lora():
    from peft import LoraConfig, get_peft_model

    steps(get_peft_model(small_gpt2(), LoraConfig(r=4, target_modules=["c_attn"])), tokens, lambda out: out.loss)


def alone():
    """A process group of this process."""
    store = torch.distributed.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)


def ddp():
    alone()
    steps(torch.nn.parallel.DistributedDataParallel(small_gpt2()), tokens, lambda out: out.loss)
    torch.distributed.destroy_process_group()


def encoder():
    return torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 3).to(DEVICE)


def values():
    return {"src": torch.randn(4, 64, 128, device=DEVICE)}


def square(out):
    return out.pow(2).mean()


def fsdp():
    from torch.distributed.fsdp import fully_shard

    alone()
    model = encoder()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    steps(model, values, square)
    torch.distributed.destroy_process_group()


def compiled():
    steps(torch.compile(encoder()), values, square)


def lightning():
    import lightning as L

    class Task(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = encoder()

        def training_step(self, batch, number):
            return square(self.model(batch))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.DataLoader(torch.randn(12, 64, 128), batch_size=4)
    trainer = L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    task = Task()
    trainer.fit(task, data)
    if sys.argv[2:] == ["kept"]:
        kept.extend([task, trainer, task.to(DEVICE).training_step(next(iter(data)).to(DEVICE), 0)])


MODELS = (gpt2, vit, resnet, unet, moe, lora, ddp, fsdp, compiled, lightning)
torch.manual_seed(1)
{model.__name__: model for model in MODELS}[sys.argv[1]]()
torch.cuda.synchronize()
result("steps", STEPS)
if not kept:
    leave()
