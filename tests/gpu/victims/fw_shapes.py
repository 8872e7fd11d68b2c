"""A Triton kernel that is specialised for each of 1,000 shapes.

With `compile FIRST STEP` as arguments, it only compiles for every STEPth shape: several such processes fill the cache of the program,
which then takes the kernels from there, one module each."""

import os
import subprocess
import sys

from printing import leave, needs, result

needs("torch", "triton")
# Of this run alone.
os.environ["TRITON_CACHE_DIR"] = os.path.abspath("triton-cache")

import torch
import triton
import triton.language as tl

from counting import step

SHAPES, WIDTH = 1000, 4096


@triton.jit
def add_shape(data, n, SHAPE: tl.constexpr):
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    inside = at < n
    tl.store(data + at, tl.load(data + at, mask=inside) + SHAPE, mask=inside)


def compile_some(first, every):
    for shape in range(first, SHAPES + 1, every):
        add_shape.warmup(torch.int32, WIDTH, SHAPE=shape, grid=(1,))


def compile_all():
    """In other processes, which nothing records."""
    number = min(16, os.cpu_count() or 1)
    bare = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, os.path.abspath(__file__), "compile"]
    others = [subprocess.Popen([*command, str(first), str(number)], env=bare) for first in range(1, number + 1)]
    codes = [other.wait() for other in others]
    if any(codes):
        sys.exit(f"the processes that compile ended with {codes}")


def main():
    compile_all()
    data = torch.zeros(WIDTH, device="cuda", dtype=torch.int32)
    torch.cuda.synchronize()
    step("shapes_0")
    for shape in range(1, SHAPES + 1):
        add_shape[(WIDTH // 128,)](data, WIDTH, SHAPE=shape)  # site: shape_triton
        if shape % 250 == 0:
            torch.cuda.synchronize()
            step(f"shapes_{shape}")
    result("sum", int(data[0].item()), int(data[-1].item()))
    leave()


if __name__ == "__main__":
    if sys.argv[1:2] == ["compile"]:
        compile_some(*map(int, sys.argv[2:]))
    else:
        main()
