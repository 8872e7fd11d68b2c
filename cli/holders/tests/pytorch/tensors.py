# Tensors of many types and sizes in host memory. Prints a line for each storage: address in hexadecimal, bytes, a tab, and what the
# tensors that lead to it are, separated by tabs; then "ready", and waits.
import sys

import torch

dtypes = [
    getattr(torch, name)
    for name in (
        "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool bfloat16 uint16 uint32 uint64 "
        "float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz float8_e8m0fnu float4_e2m1fn_x2"
    ).split()
    if hasattr(torch, name)
]
kept = {dtype: torch.empty(100, 7, dtype=dtype) for dtype in dtypes}
many = [torch.zeros(shape) for shape in [(), (1,), (640,), (20, 30), (2, 3, 4, 5, 6), (2, 1, 3, 1, 2, 7), (1,) * 9 + (64,)]]
transposed = torch.ones(30, 50).t()
parameter = torch.nn.Parameter(torch.ones(17, 19))
# More elements than the storage has.
expanded = torch.ones(3, 1).expand(3, 400)
# Views of a storage that has no other tensor.
part = torch.ones(60, 10)[20:30]
last = torch.arange(1000, dtype=torch.int64)[-1]
# Two tensors, of which either may be said.
base = torch.ones(12, 12)
view = base.view(torch.int32).reshape(144)

for tensor in [*kept.values(), *many, transposed, parameter, part, last, base]:
    storage = tensor.untyped_storage()
    said = [f"{str(of.dtype).removeprefix('torch.')}{list(of.shape)}" for of in ([tensor, view] if tensor is base else [tensor])]
    print(f"{storage.data_ptr():x} {storage.nbytes()}", *said, sep="\t")
storage = expanded.untyped_storage()
print(f"{storage.data_ptr():x} {storage.nbytes()}", "-", sep="\t")
del tensor, storage, said
print("ready", flush=True)
sys.stdin.read()
