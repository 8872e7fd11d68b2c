"""A Triton kernel on PyTorch tensors."""

import torch
import triton
import triton.language as tl

from printing import digest, fact, leave, result


@triton.jit
def add(a, b, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside), mask=inside)


n = 100_003
a = torch.arange(n, device="cuda", dtype=torch.float32)
b = torch.full((n,), 0.5, device="cuda")
out = torch.empty_like(a)
add[(triton.cdiv(n, 1024),)](a, b, out, n, BLOCK=1024)
torch.cuda.synchronize()
result("added", digest(out.cpu().numpy()))
fact("reserved", torch.cuda.memory_reserved())
leave()
