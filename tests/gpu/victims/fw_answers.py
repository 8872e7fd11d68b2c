"""Small leaks as people make them with PyTorch and CuPy; the first argument selects one. Each leaves its memory until the script
ends, and the line to blame is marked."""

import atexit
import sys

MIB = 1 << 20
kept = []


def kept_losses():
    import torch

    model = torch.nn.Linear(1024, 1024).cuda()
    for _ in range(6):
        batch = torch.randn(4096, 1024, device="cuda")
        loss = torch.exp(model(batch)).sum()  # site: answer_kept_losses
        kept.append(loss)


def kept_features():
    import torch

    features = {}

    def extract(number):
        features[number] = torch.full((MIB,), float(number), device="cuda")  # site: answer_kept_features

    for number in range(12):
        extract(number)
    kept.append(features)


def kept_by_a_helper():
    import torch

    def allocate(size):
        return torch.empty(size, device="cuda")

    def scratch():
        allocate(8 * MIB)

    def remember():
        kept.append(allocate(2 * MIB))  # site: answer_kept_by_a_helper

    for _ in range(5):
        scratch()
        remember()


def kept_gradients():
    import torch

    weight = torch.ones(4 * MIB, device="cuda", requires_grad=True)
    for _ in range(5):
        product = weight * 2
        product.register_hook(kept.append)
        product.sin().sum().backward()  # site: answer_kept_gradients


def optimizer_state():
    import torch

    model = torch.nn.Linear(4096, 4096).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4096, device="cuda")).sum().backward()
    optimizer.step()  # site: answer_optimizer_state
    optimizer.zero_grad()
    kept.append(optimizer)


def kept_graphs():
    import torch

    source = torch.ones(64, device="cuda")

    def request():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # site: answer_kept_graphs
            answer = source * 2
        kept.append((graph, answer))

    for _ in range(200):
        request()


def pinned_batches():
    import torch

    for _ in range(8):
        kept.append(torch.empty(4 * MIB, pin_memory=True))  # site: answer_pinned_batches


def freed_at_exit():
    import torch

    pool = []

    def fill():
        pool.append(torch.ones(2 * MIB, device="cuda"))  # site: answer_freed_at_exit

    for _ in range(8):
        fill()
    atexit.register(pool.clear)


def kept_arrays():
    import cupy

    for _ in range(6):
        kept.append(cupy.ones(4 * MIB, dtype=cupy.float32))  # site: answer_kept_arrays


def kept_modules():
    import cupy

    source = 'extern "C" {{ __device__ float table[2 << 20]; __global__ void k{0}(float *o) {{ o[0] = table[threadIdx.x] + {0}; }} }}'
    out = cupy.zeros(32, dtype=cupy.float32)

    def reload(number):
        kernel = cupy.RawModule(code=source.format(number)).get_function(f"k{number}")  # site: answer_kept_modules
        kernel((1,), (32,), (out,))
        kept.append(kernel)

    for number in range(10):
        reload(number)


def kept_plans():
    import cupy

    for number in range(10):
        cupy.fft.fft(cupy.ones((64, 4099 + 2 * number), dtype=cupy.complex64))  # site: answer_kept_plans
    cupy.cuda.runtime.deviceSynchronize()


def kept_model():
    import torch

    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6).cuda()  # site: answer_kept_model
    kept.append(model)


def kept_models():
    """Two models of three are still there."""
    import torch

    models = {name: torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()).cuda() for name, width in (("teacher", 1024), ("student", 512), ("old", 256))}
    del models["old"]
    globals().update(models)


def kept_activations():
    import torch

    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).cuda()
    kept.append(model)
    for _ in range(3):
        loss = model(torch.randn(16, 128, 256, device="cuda")).pow(2).mean()  # site: answer_kept_activations
        kept.append(loss)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.synchronize()
