"""Ten small models with PyTorch, each with inputs of other sizes at each step; prints what PyTorch's allocator had reserved at most.

The first argument selects one. The sizes are such that a page of 20 MiB is a small part of what is reserved.
"""

import os
import random
import sys
import tempfile

# Each run compiles what it needs, so that all runs request the same memory.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()

import torch

from printing import fact, leave, needs

DEVICE = "cuda"
STEPS = 8


def steps(model, inputs, loss_of, count=STEPS):
    """`inputs`: of one step. `loss_of`: the loss of what the model returns."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for _ in range(count):
        optimizer.zero_grad()
        loss_of(model(**inputs())).backward()
        optimizer.step()


def loss(out):
    return out.loss


def square(out):
    return out.float().pow(2).mean()


def upto(random, most, part):
    """A multiple of `part`, up to and with `most`."""
    return part * random.randint(1, most // part)


def tokens(random, words, batch=8, most=768):
    def inputs():
        ids = torch.randint(0, words, (batch, upto(random, most, 64)), device=DEVICE)
        return {"input_ids": ids, "labels": ids}

    return inputs


def pictures(random, size, most):
    def inputs():
        batch = upto(random, most, 4)
        return {"pixel_values": torch.randn(batch, 3, size, size, device=DEVICE), "labels": torch.zeros(batch, dtype=torch.long, device=DEVICE)}

    return inputs


def small_gpt2(words=8000, width=512, layers=6):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=words, n_positions=1024, n_embd=width, n_layer=layers, n_head=8)).to(DEVICE)


def gpt2(random):
    steps(small_gpt2(), tokens(random, 8000), loss)


def vit(random):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536)
    steps(ViTForImageClassification(config).to(DEVICE), pictures(random, 224, 96), loss)


def resnet(random):
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    steps(ResNetForImageClassification(config).to(DEVICE), pictures(random, 192, 96), loss)


class Block(torch.nn.Module):
    def __init__(self, given, made):
        super().__init__()
        self.norm, self.conv = torch.nn.GroupNorm(8, given), torch.nn.Conv2d(given, made, 3, padding=1)

    def forward(self, value):
        return self.conv(torch.nn.functional.silu(self.norm(value)))


class UNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.Conv2d(32, 3, 3, padding=1)
        self.down = torch.nn.ModuleList([Block(32, 64), Block(64, 128), Block(128, 256)])
        self.up = torch.nn.ModuleList([Block(512, 128), Block(256, 64), Block(128, 32)])

    def forward(self, value):
        value, kept = self.first(value), []
        for block in self.down:
            value = block(value)
            kept.append(value)
            value = torch.nn.functional.avg_pool2d(value, 2)
        for block in self.up:
            value = torch.nn.functional.interpolate(value, scale_factor=2)
            value = block(torch.cat([value, kept.pop()], 1))
        return self.last(value)


def unet(random):
    inputs = lambda: {"value": torch.randn(upto(random, 24, 2), 3, 128, 128, device=DEVICE)}
    steps(UNet().to(DEVICE), inputs, square)


def experts(random):
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2}
    model = MixtralForCausalLM(MixtralConfig(vocab_size=8000, num_local_experts=4, **sizes)).to(DEVICE)
    steps(model, tokens(random, 8000), loss)


def lora(random):
    needs("peft")
    from peft import LoraConfig, get_peft_model

    steps(get_peft_model(small_gpt2(width=768), LoraConfig(r=8, target_modules=["c_attn"])), tokens(random, 8000), loss)


def generate(random):
    model = small_gpt2(width=1024, layers=8).eval()
    for _ in range(STEPS):
        ids = torch.randint(0, 8000, (upto(random, 32, 4), upto(random, 512, 32)), device=DEVICE)
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0)


def encoder(width=512):
    return torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True), 4).to(DEVICE)


def compiled(random):
    model = torch.compile(encoder())
    for batch in (16, 32):
        steps(model, lambda: {"src": torch.randn(batch, 512, 512, device=DEVICE)}, square, count=3)


def lightning(random):
    needs("lightning")
    import lightning as L

    class Task(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = encoder()

        def training_step(self, batch, number):
            return square(self.model(batch[:, : upto(random, 512, 64)]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.DataLoader(torch.randn(16 * STEPS, 512, 512), batch_size=16)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    L.Trainer(max_epochs=1, devices=1, **quiet).fit(Task(), data)


def two_optimizers(random):
    """A GAN: a generator and a discriminator, in turns."""
    layers = lambda *widths: [part for given, made in zip(widths, widths[1:]) for part in (torch.nn.Conv2d(given, made, 3, padding=1), torch.nn.ReLU())]
    maker = torch.nn.Sequential(*layers(16, 128, 128, 64, 3)).to(DEVICE)
    judge = torch.nn.Sequential(*layers(3, 64, 128, 128), torch.nn.Conv2d(128, 1, 3)).to(DEVICE)
    of_maker, of_judge = (torch.optim.Adam(model.parameters(), lr=1e-4) for model in (maker, judge))
    for _ in range(STEPS):
        batch, side = upto(random, 24, 2), upto(random, 128, 32)
        made = maker(torch.randn(batch, 16, side, side, device=DEVICE))
        of_judge.zero_grad()
        (judge(torch.rand(batch, 3, side, side, device=DEVICE)).mean() - judge(made.detach()).mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        judge(made).mean().backward()
        of_maker.step()


mode = sys.argv[1]
MODELS = (gpt2, vit, resnet, unet, experts, lora, generate, compiled, lightning, two_optimizers)
if mode in ("gpt2", "vit", "resnet", "experts", "lora", "generate"):
    needs("transformers")
torch.manual_seed(1)
{model.__name__: model for model in MODELS}[mode](random.Random(mode))
torch.cuda.synchronize()
fact("peak_reserved", torch.cuda.max_memory_reserved())
fact("peak_allocated", torch.cuda.max_memory_allocated())
leave()
