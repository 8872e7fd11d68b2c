"""PyTorch programs that reserve more memory than their tensors need; each prints what its allocator had reserved at most.

    fw_fragmentation.py train      an MLP with batches of other sizes at each step
    fw_fragmentation.py attention  a transformer with sequences of other lengths at each step
    fw_fragmentation.py cache      a cache that grows by concatenation beside small blocks that stay
    fw_fragmentation.py streams    two streams that allocate in turns
    fw_fragmentation.py pins       blocks of 2 MiB, each of which keeps a segment of 64 MiB
    fw_fragmentation.py repaired   the same without the line that keeps the blocks
"""

import random
import sys

import torch

from printing import fact, leave

MIB = 1 << 20
SEGMENTS = 16
kept = []


def block(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


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


def streams(random):
    side = torch.cuda.Stream()
    for _ in range(60):
        first = block(random.randrange(2, 60))
        with torch.cuda.stream(side):
            second = block(random.randrange(2, 60))
            kept.append(block(2))
        del first, second


def keep_state():
    return torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")  # site: fragmentation_pin


def pins(keeps):
    work = []
    for _ in range(SEGMENTS):
        segment = block(64)
        del segment
        state = keep_state()
        # The rest of the segment, so that the next round takes another one.
        work.append(block(62))
        if keeps:
            kept.append(state)
        del state
    work.clear()
    torch.cuda.empty_cache()
    fact("reserved", torch.cuda.memory_reserved())
    fact("allocated", torch.cuda.memory_allocated())


mode = sys.argv[1]
if mode in ("pins", "repaired"):
    pins(mode == "pins")
else:
    torch.manual_seed(0)
    {"train": train, "attention": attention, "cache": cache, "streams": streams}[mode](random.Random(mode))
torch.cuda.synchronize()
fact("peak_reserved", torch.cuda.max_memory_reserved())
fact("peak_allocated", torch.cuda.max_memory_allocated())
leave()
