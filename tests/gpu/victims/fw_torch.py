"""PyTorch programs; the first argument selects one. They print a result that must not depend on a recorder."""

import sys

import torch

from printing import digest, fact, leak, leave, live, result

DEVICE = "cuda"


def train(steps=10):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 256, device=DEVICE)
    target = torch.randn(64, 8, device=DEVICE)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
    result("loss", digest(loss.detach().cpu().numpy()), digest(model[0].weight.detach().cpu().numpy()))
    return model


def leaks_a_tensor(size=1_234_567):
    tensor = torch.empty(size, dtype=torch.uint8, device=DEVICE)  # site: torch_leak
    leak(tensor)
    return tensor


def caching():
    """The default: few large segments, which add up to memory_reserved()."""
    model = train()
    kept = [torch.ones(1 << 20, device=DEVICE) for _ in range(8)]
    result("sum", sum(t.sum().item() for t in kept))
    torch.cuda.synchronize()
    fact("reserved", torch.cuda.memory_reserved())
    fact("segments", len(torch.cuda.memory_snapshot()))
    del model
    leave()


def uncached():
    """PYTORCH_NO_CUDA_MEMORY_CACHING=1: each tensor is a cudaMalloc."""
    train()
    tensor = leaks_a_tensor()
    live("torch_leak", "device", tensor.data_ptr(), 1_234_567)


def ordered():
    """backend:cudaMallocAsync: each tensor is a cudaMallocAsync."""
    train()
    tensor = leaks_a_tensor()
    torch.cuda.synchronize()
    live("torch_leak", "async", tensor.data_ptr(), 1_234_567)


def expandable():
    """expandable_segments:True: memory comes as VMM handles of 2 and 20 MiB."""
    model = train()
    kept = [torch.ones(3 << 20, device=DEVICE) for _ in range(3)]
    result("sum", sum(t.sum().item() for t in kept))
    fact("reserved", torch.cuda.memory_reserved())
    del model
    leave()


def pinned():
    """Page-locked host memory."""
    tensor = torch.arange(1 << 18, dtype=torch.int32).pin_memory()
    result("sum", tensor.to(DEVICE, non_blocking=True).sum().item())
    fact("pinned", tensor.data_ptr())
    leave()


def graph():
    """A captured CUDA graph, replayed; its private pool is part of memory_reserved()."""
    torch.manual_seed(2)
    static = torch.randn(256, 256, device=DEVICE)
    weight = torch.randn(256, 256, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            output = (static @ weight).relu()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        output = (static @ weight).relu()
    for step in range(3):
        static.fill_(step + 1)
        captured.replay()
    torch.cuda.synchronize()
    result("output", digest(output.cpu().numpy()))
    fact("reserved", torch.cuda.memory_reserved())
    leave()


def profiler():
    """torch.profiler, which uses CUPTI, beside the recorder."""
    data = torch.randn(256, 256, device=DEVICE)
    (data @ data).relu().sum().item()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        (data @ data).relu().sum().item()
        torch.cuda.synchronize()
    kernels = sorted({event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA})
    result("kernels", len(kernels), *[name.replace(" ", "")[:60] for name in kernels])


def training():
    """A transformer in training that keeps every step's output: many deep stacks, on the main and the autograd thread."""
    torch.manual_seed(2)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 3).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(4, 32, 128, device=DEVICE)
    kept = []
    for _ in range(5):
        optimizer.zero_grad()
        kept.append(model(data))
        (kept[-1] ** 2).mean().backward()
        kept += [p.grad for p in model.parameters()]
        optimizer.step()
    torch.cuda.synchronize()
    result("shape", *kept[0].shape, len(kept))
    fact("kept", len(kept))
    leave()


{f.__name__: f for f in (caching, uncached, ordered, expandable, pinned, graph, profiler, training)}[sys.argv[1]]()
