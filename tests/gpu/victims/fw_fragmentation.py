"""PyTorch programs that reserve more memory than their tensors need; each prints what its allocator had reserved at most.

    fw_fragmentation.py train      an MLP with batches of other sizes at each step
    fw_fragmentation.py attention  a transformer with sequences of other lengths at each step
    fw_fragmentation.py cache      a cache that grows by concatenation beside small blocks that stay
    fw_fragmentation.py language   a language model whose logits are its largest tensors, with sequences of other lengths
    fw_fragmentation.py pictures   convolutions over pictures of other sizes
    fw_fragmentation.py unet       a U-Net whose skip connections stay until their layer comes
    fw_fragmentation.py experts    a mixture of experts, each of which gets another number of tokens at each step
    fw_fragmentation.py generate   a decoder with a cache of keys and values for each request
    fw_fragmentation.py recomputed a transformer whose layers are computed again in backward
    fw_fragmentation.py streams    two streams that allocate in turns
    fw_fragmentation.py pins       blocks of 2 MiB, each of which keeps a segment of 64 MiB
    fw_fragmentation.py losses     blocks of 64 KiB, each of which keeps a segment of the small pool
    fw_fragmentation.py prefixes   a block of 8 MiB of each request, which keeps a segment of 20 MiB
    fw_fragmentation.py pairs      blocks of two lines, which keep segments of 48 MiB together
    fw_fragmentation.py growing    notes between the copies of a buffer that grows
    fw_fragmentation.py called     as train, with settings that the program makes in its code
    fw_fragmentation.py limited    requests until the memory that the program may use is full
    fw_fragmentation.py captured   three graphs, each with a private pool
    fw_fragmentation.py registered tensors in a pool of NCCL's memory, beside others
    fw_fragmentation.py fenced     pytorch#193400: a block that stays after each pair of large ones, in the way of the next pair
    fw_fragmentation.py converted  vLLM#41268: weights of 36 layers, converted through copies, where smaller weights are placed for good
    fw_fragmentation.py waiting    batches of a second stream that are freed while the first one may use them (record_stream)
    fw_fragmentation.py pooled     a MemPool of PyTorch's own allocator, beside other tensors
Without the line that keeps the blocks: a second argument, `repaired`.
"""

import random
import sys

import torch

from printing import fact, leave, live

MIB = 1 << 20
SEGMENTS = 16
BYTES = {"dtype": torch.uint8, "device": "cuda"}
kept = []


def block(mib):
    return torch.empty(int(mib * MIB), **BYTES)


def train(random):
    layers = [torch.nn.Linear(2048, 2048) for _ in range(6)]
    model = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.GELU())]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(40):
        batch = torch.randn(random.randrange(64, 8192), 2048, device="cuda")
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def attention(random):
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        batch = torch.randn(random.randrange(2, 16), random.randrange(64, 1024), 512, device="cuda")
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def cache(random):
    held = block(8)
    for _ in range(60):
        held = torch.cat([held, block(random.randrange(4, 24))])
        kept.append(block(random.randrange(3, 9) / 2))
        scratch = block(random.randrange(30, 200))
        del scratch


def trained(model, batches, loss_of):
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:
        loss_of(model(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()


def square(out):
    return out.square().mean()


def language(random):
    words = 16000
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    layers = torch.nn.TransformerEncoder(layer, 3)
    model = torch.nn.Sequential(torch.nn.Embedding(words, 512), layers, torch.nn.Linear(512, words)).cuda()
    lengths = (random.randrange(64, 768) for _ in range(25))
    batches = (torch.randint(0, words, (8, length), device="cuda") for length in lengths)
    trained(model, batches, lambda out: torch.nn.functional.cross_entropy(out.flatten(0, 1), out.new_zeros(out.shape[0] * out.shape[1], dtype=torch.long)))


def convolution(given, made, stride=1):
    return torch.nn.Sequential(torch.nn.Conv2d(given, made, 3, stride, 1), torch.nn.BatchNorm2d(made), torch.nn.ReLU())


def picture_batches(random, count):
    for _ in range(count):
        side = 32 * random.randrange(2, 9)
        yield torch.randn(random.randrange(4, 24), 3, side, side, device="cuda")


def pictures(random):
    model = torch.nn.Sequential(convolution(3, 64), convolution(64, 128, 2), convolution(128, 256, 2), convolution(256, 512, 2)).cuda()
    trained(model, picture_batches(random, 25), square)


class UNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down = torch.nn.ModuleList([convolution(3, 64), convolution(64, 128, 2), convolution(128, 256, 2)])
        self.up = torch.nn.ModuleList([convolution(256 + 128, 128), convolution(128 + 64, 64)])

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        skips.pop()
        for layer in self.up:
            x = torch.nn.functional.interpolate(x, scale_factor=2)
            x = layer(torch.cat([x, skips.pop()], 1))
        return x


def unet(random):
    trained(UNet().cuda(), picture_batches(random, 25), square)


class Experts(torch.nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        made = lambda: torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))
        self.experts = torch.nn.ModuleList([made() for _ in range(8)])

    def forward(self, batch):
        x, chosen = batch
        out = torch.zeros_like(x)
        for nth, expert in enumerate(self.experts):
            of_expert = (chosen == nth).nonzero().squeeze(1)
            out = out.index_add(0, of_expert, expert(x[of_expert]))
        return out


def experts(random):
    torch.manual_seed(1)
    sizes = (random.randrange(512, 8192) for _ in range(25))
    batches = ((torch.randn(size, 1024, device="cuda"), torch.randint(0, 8, (size,), device="cuda")) for size in sizes)
    trained(Experts().cuda(), batches, square)


def generate(random):
    heads, width, layers = 16, 64, 8
    requests = {}
    for nth in range(24):
        length = random.randrange(64, 2048)
        requests[nth] = [torch.randn(2, heads, length, width, device="cuda") for _ in range(layers)]
        for _ in range(8):
            for cache in requests.values():
                for layer, held in enumerate(cache):
                    new = torch.randn(2, heads, 16, width, device="cuda")
                    cache[layer] = torch.cat([held, new], 2)
                    (cache[layer] @ new.transpose(2, 3)).softmax(2)
        if len(requests) > 6:
            del requests[random.choice(list(requests))]


def recomputed(random):
    from torch.utils.checkpoint import checkpoint

    layers = torch.nn.ModuleList([torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(6)]).cuda()
    optimizer = torch.optim.AdamW(layers.parameters())
    for _ in range(25):
        x = torch.randn(random.randrange(2, 16), random.randrange(64, 1024), 512, device="cuda", requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        square(x).backward()
        optimizer.step()
        optimizer.zero_grad()


def streams(random):
    side = torch.cuda.Stream()
    for _ in range(60):
        first = block(random.randrange(2, 60))
        with torch.cuda.stream(side):
            second = block(random.randrange(2, 60))
            kept.append(block(2))
        del first, second


def pins(keeps):
    work = []
    for _ in range(SEGMENTS):
        segment = block(64)
        del segment
        state = torch.empty(2 * MIB, **BYTES)  # site: fragmentation_pin
        # The rest of the segment, so that the next round takes another one.
        work.append(block(62))
        if keeps:
            kept.append(state)


def losses(keeps):
    work = []
    for _ in range(SEGMENTS):
        work += [block(1 / 16) for _ in range(31)]
        if keeps:
            kept.append(torch.empty(MIB // 16, **BYTES))  # site: fragmentation_loss


def prefixes(keeps):
    caches = []
    for _ in range(SEGMENTS):
        caches += [block(8) for _ in range(5)]
        if keeps:
            kept.append(torch.empty(8 * MIB, **BYTES))  # site: fragmentation_prefix


def pairs(keeps):
    work = []
    for _ in range(SEGMENTS):
        segment = block(48)
        del segment
        if keeps:
            kept.append(torch.empty(4 * MIB, **BYTES))  # site: fragmentation_first
            kept.append(torch.empty(6 * MIB, **BYTES))  # site: fragmentation_second
        work.append(block(38))


def growing(keeps):
    buffer = block(32)
    for nth in range(SEGMENTS):
        larger = block(64 + 32 * nth)
        buffer = larger
        if keeps:
            kept.append(torch.empty(12 * MIB, **BYTES))  # site: fragmentation_note


def called(random):
    settings = "max_split_size_mb:64"
    # Since 2.10; older versions have the other one.
    make = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    make(settings)
    train(random)


def limited(random):
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        for _ in range(1000):
            kept.append(block(512))
    except torch.OutOfMemoryError:
        fact("failed", 1)


def captured(random):
    for nth in range(3):
        held = torch.ones(MIB * (nth + 1), device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = (held * 2 + 1).relu()
        graph.replay()
        kept.append((held, graph, out))
    free = {True: 0, False: 0}
    for segment in torch.cuda.memory_snapshot():
        if tuple(segment["segment_pool_id"]) != (0, 0):
            live("private_pool", "device", segment["address"], segment["total_size"])
            free[segment["allocated_size"] > 0] += segment["total_size"] - segment["allocated_size"]
    fact("private_pinned", free[True])
    fact("private_idle", free[False])


def registered(random):
    import os

    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    backend = dist.group.WORLD._get_backend(torch.device("cuda:0"))
    try:
        pool = torch.cuda.MemPool(backend.mem_allocator)
    except RuntimeError as error:
        print(f"UNSUPPORTED 0 {error}", flush=True)
        sys.exit(0)
    kept.extend(block(random.randrange(2, 40)) for _ in range(20))
    with torch.cuda.use_mem_pool(pool):
        kept.extend(block(24) for _ in range(3))
    kept.extend(block(random.randrange(2, 40)) for _ in range(20))
    kept.append(pool)
    fact("in_pool", 3)


def fenced(random):
    kept.append(block(64))
    for _ in range(101):
        large, half = block(91), block(91 / 2)
        kept.append(block(2))
        del large, half


def converted(random):
    for _ in range(36):
        copy = block(530)
        kept.append(block(530))
        del copy
        kept.append(block(270))


def waiting(random):
    side = torch.cuda.Stream()
    for _ in range(60):
        with torch.cuda.stream(side):
            batch = block(random.randrange(2, 60)).fill_(1)
            kept.append(block(2))
        torch.cuda.current_stream().wait_stream(side)
        work = batch + 1
        batch.record_stream(torch.cuda.current_stream())
        del batch
        other = block(random.randrange(2, 60))
        # Only now are the events complete that the batch waits for.
        torch.cuda.synchronize()
        del work, other


def pooled(random):
    pool = torch.cuda.MemPool()
    for _ in range(60):
        first = block(random.randrange(2, 60))
        with torch.cuda.use_mem_pool(pool):
            second = block(random.randrange(2, 60))
            kept.append(block(2))
        del first, second
    kept.append(pool)


PLANTED = (pins, losses, prefixes, pairs, growing)


def plant(run, keeps):
    run(keeps)
    torch.cuda.empty_cache()
    fact("reserved", torch.cuda.memory_reserved())
    fact("allocated", torch.cuda.memory_allocated())


mode = sys.argv[1]
planted = {run.__name__: run for run in PLANTED}.get(mode)
if planted:
    plant(planted, sys.argv[2:] != ["repaired"])
else:
    torch.manual_seed(0)
    RUNS = (train, attention, cache, language, pictures, unet, experts, generate, recomputed, streams, called, limited, captured, registered, fenced, converted, waiting, pooled)
    {run.__name__: run for run in RUNS}[mode](random.Random(mode))
torch.cuda.synchronize()
stats = torch.cuda.memory_stats()
fact("rounding", stats["allocated_bytes.all.current"] - stats["requested_bytes.all.current"])
fact("peak_reserved", torch.cuda.max_memory_reserved())
fact("peak_allocated", torch.cuda.max_memory_allocated())
leave()
