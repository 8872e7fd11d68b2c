"""Models in PyTorch that say which category each of their tensors belongs to; the first argument selects one.

At each instant the program writes, by address, what torch.profiler's memory timeline calls each block, and which blocks its own
lists name: parameters, buffers, gradients, optimizer state, inputs, caches. Under culeak it requests a snapshot at the instant,
through ctypes; without it that symbol does not exist."""

import ctypes
import json
import os
import sys

import torch
from torch import nn
from torch.nn import functional as F

from printing import fact, leave, result

DEVICE = "cuda"
STEPS = 3
culeak = ctypes.CDLL(None)


class Program:
    """The tensors that the program itself can name, and the instants at which they were compared."""

    def __init__(self):
        self.lists = {}
        self.named = {}

    def lists_are(self, **lists):
        """Functions that return the tensors of each category."""
        self.lists = lists

    def instant(self, name):
        torch.cuda.synchronize()
        # The profiler's clock at this instant is the start of this range.
        with torch.profiler.record_function(f"at_{name}"):
            pass
        fact(f"at_{name}", torch.cuda.memory_allocated())
        if hasattr(culeak, "culeak_snapshot"):
            culeak.culeak_snapshot(f"at_{name}".encode())
        named = {}
        for category, tensors in self.lists.items():
            for tensor in tensors():
                if tensor is not None and tensor.is_cuda:
                    named[tensor.untyped_storage().data_ptr()] = category
        self.named[name] = named


program = Program()


def profiled(work):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        work()
    with open(f"oracle.{os.getpid()}.json", "w") as out:
        json.dump(oracle(profiler._memory_profile()), out)
    result("instants", *program.named)


def oracle(profile):
    """By instant: [address, the profiler's category, the program's] of each block that one of them knows."""
    from torch.profiler._memory_profiler import Action, TensorKey

    starts = {event.name: event.start_time_ns for event in profile._op_tree.dfs() if event.name.startswith("at_")}
    timeline = profile.timeline
    found = {}
    for name, named in program.named.items():
        live = {}
        for time, action, (key, version), _ in timeline:
            if time > starts[f"at_{name}"]:
                break
            if not isinstance(key, TensorKey) or key.device.type != "cuda":
                continue
            if action == Action.DESTROY:
                live.pop(key, None)
            else:
                live[key] = version + (action == Action.INCREMENT_VERSION)
        categories = {key.storage.ptr: profile._categories.get(key, version) for key, version in live.items()}
        addresses = sorted(categories.keys() | named.keys())
        category = lambda address: getattr(categories.get(address), "name", None)
        found[name] = [[address, category(address), named.get(address)] for address in addresses]
    return found


def train(model, optimizer, batch, loss_of, unprofiled=1):
    """Trains, and names the instants of the last step: after forward, within backward, after backward, after the step."""
    last = None

    def state():
        return [value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)]

    program.lists_are(
        buffers=lambda: model.buffers(),
        inputs=lambda: last or (),
        gradients=lambda: (parameter.grad for parameter in model.parameters()),
        optimizer_state=state,
        parameters=lambda: model.parameters(),
    )

    def steps(numbers):
        nonlocal last
        for number in numbers:
            watched = number == STEPS - 1
            last = batch()
            loss, middle = loss_of(model, *last)
            if watched:
                program.instant("forward")
                middle.register_hook(lambda gradient: program.instant("middle"))
            del middle
            loss.backward()
            if watched:
                program.instant("backward")
            optimizer.step()
            if watched:
                program.instant("step")
            optimizer.zero_grad()
            del loss

    steps(range(unprofiled))
    profiled(lambda: steps(range(unprofiled, STEPS)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.behind(x))))


class Transformer(nn.Module):
    def __init__(self, words=4096, width=512, layers=4, watched=True):
        super().__init__()
        self.watched = watched
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x)
            if self.watched and number == 1:
                self.middle = x
        return self.head(self.norm(x))


def tokens(words=4096):
    drawn = torch.randint(words, (8, 257)).to(DEVICE)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def loss_of_words(model, given, wanted):
    loss = F.cross_entropy(model(given).flatten(0, 1), wanted.flatten())
    inner = getattr(model, "module", model)
    middle, inner.middle = inner.middle, None
    return loss, middle


def transformer():
    model = Transformer().to(DEVICE)
    train(model, torch.optim.AdamW(model.parameters()), tokens, loss_of_words)


class Residual(nn.Module):
    def __init__(self, given, wide, stride):
        super().__init__()
        self.first = nn.Conv2d(given, wide, 3, stride, 1, bias=False, device=DEVICE)
        self.second = nn.Conv2d(wide, wide, 3, 1, 1, bias=False, device=DEVICE)
        self.norms = nn.ModuleList(nn.BatchNorm2d(wide, device=DEVICE) for _ in range(2))
        self.short = nn.Conv2d(given, wide, 1, stride, bias=False, device=DEVICE) if stride > 1 else nn.Identity()

    def forward(self, x):
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(inner)) + self.short(x))


class Resnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3, device=DEVICE)
        self.stages = nn.ModuleList([Residual(64, 64, 1), Residual(64, 128, 2), Residual(128, 256, 2), Residual(256, 512, 2)])
        self.head = nn.Linear(512, 100, device=DEVICE)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number == 1:
                self.middle = x
        return self.head(x.mean((2, 3)))


def resnet():
    model = Resnet()
    batch = lambda: (torch.randn(32, 3, 128, 128, device=DEVICE), torch.randint(100, (32,), device=DEVICE))

    def loss_of(model, images, labels):
        loss = F.cross_entropy(model(images), labels)
        middle, model.middle = model.middle, None
        return loss, middle

    train(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), batch, loss_of)


class Lora(nn.Module):
    """A frozen layer with an adapter of low rank, whose parameters are created on the device."""

    def __init__(self, frozen, rank=16):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, frozen.in_features, device=DEVICE) / rank)
        self.b = nn.Parameter(torch.zeros(frozen.out_features, rank, device=DEVICE))

    def forward(self, x):
        return self.frozen(x) + x @ self.a.T @ self.b.T


def lora():
    model = Transformer().to(DEVICE).requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.up, block.down = Lora(block.qkv), Lora(block.up), Lora(block.down)
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    train(model, torch.optim.AdamW(adapters), tokens, loss_of_words)


def ddp():
    torch.distributed.init_process_group("nccl", init_method=f"file://{os.getcwd()}/group.{os.getpid()}", rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(Transformer().to(DEVICE), device_ids=[0])
    train(model, torch.optim.AdamW(model.parameters()), tokens, loss_of_words, unprofiled=2)


def compiled():
    model = torch.compile(Transformer(watched=False).to(DEVICE))

    def loss_of(model, given, wanted):
        scores = model(given).flatten(0, 1)
        return F.cross_entropy(scores, wanted.flatten()), scores

    train(model, torch.optim.AdamW(model.parameters()), tokens, loss_of, unprofiled=2)


def generate():
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

    shape = dict(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8, vocab_size=4096)
    model = LlamaForCausalLM(LlamaConfig(**shape)).to(DEVICE).eval()
    prompt = torch.randint(4096, (16, 512), device=DEVICE)
    cache = None

    class Watch(StoppingCriteria):
        watching = False

        def __call__(self, given, scores, **_):
            if self.watching and given.shape[1] == 520:
                program.instant("token")
            return torch.zeros(len(given), dtype=torch.bool, device=DEVICE)

    watch = Watch()

    def cached():
        return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)] if cache else []

    program.lists_are(buffers=lambda: model.buffers(), inputs=lambda: [prompt], kv_cache=cached, parameters=lambda: model.parameters())

    def work():
        nonlocal cache
        cache = DynamicCache(config=model.config)
        model.generate(prompt, past_key_values=cache, max_new_tokens=12, do_sample=False, stopping_criteria=StoppingCriteriaList([watch]))
        if watch.watching:
            program.instant("end")

    work()
    watch.watching = True
    profiled(work)


MODELS = (transformer, resnet, lora, ddp, compiled, generate)
if __name__ == "__main__":
    torch.manual_seed(1)
    {f.__name__: f for f in MODELS}[sys.argv[1]]()
    leave()
