"""PyTorch programs that print at every step what the caching allocator holds; the first argument selects one.

Under culeak they also request a snapshot of each step, through ctypes; without it that symbol does not exist. Sizes are chosen
so that a block is a tensor rounded up to 512 bytes."""

import ctypes
import gc
import sys
import threading

import torch

from printing import digest, fact, leave, live, result

DEVICE = "cuda"
culeak = ctypes.CDLL(None)


def step(name):
    """What is allocated now, by PyTorch's totals and, as a snapshot, by ours."""
    torch.cuda.synchronize()
    fact(f"at_{name}", torch.cuda.memory_allocated())
    if hasattr(culeak, "culeak_snapshot"):
        culeak.culeak_snapshot(f"at_{name}".encode())


def tensor_lives(label, tensor):
    blocks = (tensor.numel() * tensor.element_size() + 511) // 512 * 512
    live(label, "tensor", tensor.data_ptr(), blocks)


def a_model(width=64):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 8)]
    return torch.nn.Sequential(*layers).to(DEVICE)


def batch(number, width=64):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(32, width, generator=generator).to(DEVICE)


def train(model, batches, each=lambda number: None):
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for number, data in enumerate(batches):
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()  # site: torch_forward
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        each(number)
    result("losses", digest(torch.tensor(losses).numpy()))


def steps():
    """Training, on the main thread and autograd's."""
    train(a_model(), (batch(n) for n in range(6)), step)
    torch.cuda.empty_cache()
    step("emptied")
    leave()


def threads():
    """Four threads that train at once, each with its own stream and model."""
    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            model = torch.nn.Linear(32, 32, device=DEVICE)
            data = torch.ones(8, 32, device=DEVICE)
            for _ in range(20):
                model.zero_grad()
                model(data).sum().backward()
            kept.append((model, data))
    kept = []
    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    result("threads", len(kept))
    step("joined")
    leave()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((64,), float(index))


def loader(method):
    """A DataLoader with two workers, pinned memory and a copy to the device for each batch."""
    model = a_model()
    step("before")
    data = torch.utils.data.DataLoader(Numbers(), batch_size=16, num_workers=2, pin_memory=True, multiprocessing_context=method)
    train(model, (b.to(DEVICE, non_blocking=True) for b in data), step)
    leave()


def loader_fork():
    loader("fork")


def loader_spawn():
    loader("spawn")


def compiled():
    model = torch.compile(a_model())
    train(model, (batch(n) for n in range(4)), step)
    leave()


def graph():
    """A captured graph and its private pool."""
    static = batch(1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            static @ static.T
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        output = static @ static.T
    step("captured")
    captured.replay()
    step("replayed")
    result("output", *output.shape)
    leave()


def leaks():
    """One leak of each kind that training scripts have; every live tensor is printed."""
    # (a) losses that keep their graphs
    weight = torch.ones(1000, device=DEVICE, requires_grad=True)
    losses = []
    for _ in range(3):
        losses.append((weight * 2).exp().sum())  # site: losses_with_graphs
    saved = losses[0].grad_fn.next_functions[0][0]._saved_result
    tensor_lives("losses_with_graphs", saved)
    # (b) a hook that keeps activations
    activations = []
    layer = torch.nn.Linear(300, 300, device=DEVICE)
    layer.register_forward_hook(lambda module, given, output: activations.append(output.detach().clone()))  # site: activations_kept
    layer(torch.ones(10, 300, device=DEVICE))
    tensor_lives("activations_kept", activations[0])
    # (c) a reference cycle that is never collected
    gc.disable()
    cycle = {"tensor": torch.ones(77_777, device=DEVICE)}  # site: reference_cycle
    cycle["self"] = cycle
    tensor_lives("reference_cycle", cycle["tensor"])
    del cycle
    # (e) a pinned buffer that was forgotten
    forgotten = torch.empty(123_456, dtype=torch.uint8).pin_memory()  # site: forgotten_pinned
    fact("forgotten_pinned", forgotten.data_ptr())
    result("losses", len(losses), len(activations), bool(forgotten.is_pinned()))
    step("end")
    leave()


def graph_pool():
    """(d) the pool of a captured graph that stays alive."""
    static = torch.ones(100, 100, device=DEVICE)
    static @ static
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        inside = static.exp()  # site: graph_pool_leak
    tensor_lives("graph_pool_leak", inside)
    captured.replay()
    result("inside", inside.sum().item())
    step("end")
    leave()


def extension():
    """(f) a C++ extension that keeps its tensors. Needs ninja and a C++ compiler; built once per TORCH_EXTENSIONS_DIR."""
    from torch.utils.cpp_extension import load_inline

    source = """
    static std::vector<at::Tensor> kept;
    torch::Tensor hold(int64_t size) {
        kept.push_back(torch::ones({size}, torch::TensorOptions().device(torch::kCUDA)));
        return kept.back();
    }
    """
    leaky = load_inline(name="leaky", cpp_sources=[source], functions=["hold"])
    tensor_lives("extension_leak", leaky.hold(5000))  # site: extension_leak
    result("extension", 1)
    step("end")
    leave()


def out_of_memory():
    kept = [torch.ones(1000, device=DEVICE) for _ in range(5)]
    for _ in range(2):
        try:
            torch.empty(1 << 46, dtype=torch.uint8, device=DEVICE)  # site: torch_out_of_memory
        except torch.cuda.OutOfMemoryError as error:
            result("request_failed", type(error).__name__, str(error).split(".")[0].replace(" ", "_"))
    step("after")
    result("kept", sum(int(t.sum().item()) for t in kept))
    leave()


def profiler():
    """The profiler's own memory events pass through the same function."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = [torch.ones(1000, device=DEVICE) for _ in range(7)]
        del kept[3:]
    on_gpu = [event.device_memory_usage for event in profile.events() if event.device_memory_usage]
    result("memory events", len(on_gpu), sum(on_gpu))
    leave()


def million():
    """10 million tensor events on 8 threads."""
    EACH = 625_000

    def work():
        for _ in range(EACH):
            torch.empty(100, device=DEVICE)

    torch.empty(100, device=DEVICE)
    workers = [threading.Thread(target=work) for _ in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    kept = torch.ones(100, device=DEVICE)
    fact("events", 2 * 8 * EACH)
    tensor_lives("million", kept)
    result("done", 8 * EACH)
    step("end")
    leave()


MODES = (steps, threads, loader_fork, loader_spawn, compiled, graph, leaks, graph_pool, extension, out_of_memory, profiler, million)
if __name__ == "__main__":
    {f.__name__: f for f in MODES}[sys.argv[1]]()
