"""A Triton kernel that is specialised for each of 100 shapes."""

import os

from printing import fact, leave, needs, result

needs("torch", "triton")
# Empty, so that each shape is compiled.
os.environ["TRITON_CACHE_DIR"] = os.path.abspath("triton-cache")

import torch
import triton
import triton.language as tl

from counting import step

SHAPES = 100


@triton.jit
def add_shape(data, n, SHAPE: tl.constexpr):
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    inside = at < n
    tl.store(data + at, tl.load(data + at, mask=inside) + SHAPE, mask=inside)


def main():
    data = torch.zeros(4096, device="cuda", dtype=torch.int32)
    torch.cuda.synchronize()
    step("shapes_0")
    for shape in range(1, SHAPES + 1):
        add_shape[(32,)](data, 4096, SHAPE=shape * 3)  # site: shape_triton
        if shape % 25 == 0:
            torch.cuda.synchronize()
            step(f"shapes_{shape}")
    result("sum", int(data[0]), int(data[-1]))
    fact("shapes", SHAPES)
    leave()


main()
