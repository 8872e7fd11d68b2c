"""A small step of each CUDA library that the arguments name, in one process on PyTorch."""

import os
import sys

from printing import leave, needs, result

needs("torch", "numpy")

import numpy
import torch
import torch.distributed as dist

from counting import step


def on_device(array):
    """A copy of the host's, which needs no kernel."""
    return torch.from_numpy(array).cuda()


def lacks(what):
    print(f"UNSUPPORTED {os.getpid()} {what}", flush=True)
    sys.exit(0)


def cublas():
    a = on_device(numpy.ones((512, 512), dtype=numpy.float32))
    return [a @ a]


def cublasLt():
    """A product with a bias."""
    a = on_device(numpy.ones((512, 512), dtype=numpy.float16))
    return [torch.nn.functional.linear(a, a, on_device(numpy.ones(512, dtype=numpy.float16)))]


def cudnn():
    if not torch.backends.cudnn.is_available():
        lacks("cuDNN in PyTorch")
    images = on_device(numpy.ones((8, 16, 32, 32), dtype=numpy.float32))
    weights = on_device(numpy.ones((16, 16, 3, 3), dtype=numpy.float32))
    return [torch.nn.functional.conv2d(images, weights, padding=1)]


def cufft():
    return [torch.fft.fft(on_device(numpy.ones(1 << 20, dtype=numpy.complex64)))]


def cusolver():
    torch.backends.cuda.preferred_linalg_library("cusolver")
    return [torch.linalg.cholesky(on_device(2 * numpy.eye(256, dtype=numpy.float32)))]


def cusparse():
    rows = 10_000
    offsets, columns = numpy.arange(rows + 1, dtype=numpy.int32), numpy.arange(rows, dtype=numpy.int32)
    values = on_device(numpy.ones(rows, dtype=numpy.float32))
    matrix = torch.sparse_csr_tensor(on_device(offsets), on_device(columns), values, size=(rows, rows))
    return [matrix @ on_device(numpy.ones((rows, 8), dtype=numpy.float32)), matrix]


def nccl():
    if not dist.is_available() or not dist.is_nccl_available():
        lacks("NCCL in PyTorch")
    data = on_device(numpy.ones(1 << 20, dtype=numpy.float32))
    dist.init_process_group("nccl", init_method=f"file://{os.path.abspath('store')}", rank=0, world_size=1)
    dist.all_reduce(data)
    return [data]


def main():
    kept = [torch.empty(1, device="cuda")]
    torch.cuda.synchronize()
    step("context")
    for name in sys.argv[1:]:
        kept.append({f.__name__: f for f in (cublas, cublasLt, cudnn, cufft, cusolver, cusparse, nccl)}[name]())
        torch.cuda.synchronize()
        step(name)
    result("steps", *sys.argv[1:])
    leave()


main()
