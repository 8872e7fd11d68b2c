# Tensors of PyTorch in host memory, held by globals. Prints a line for each of their storages: address in hexadecimal, bytes; then
# "ready". Answers `drop NAME` by the bytes that were freed when that global was deleted.
import gc
import sys

import torch
from torch.multiprocessing.reductions import StorageWeakRef

number = iter(range(2000, 10**6, 128))
storages = {}


def storage(tensor):
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()._storage


def track():
    """Remembers the storages of all tensors that Python knows."""
    for tensor in gc.get_objects():
        if issubclass(type(tensor), torch.Tensor):
            of = storage(tensor)
            storages[of.data_ptr()] = (of.nbytes(), StorageWeakRef(of))


def new(**options):
    tensor = torch.ones(next(number), **options)
    track()
    return tensor


def loss_of():
    weight = new(requires_grad=True)
    scale = torch.ones_like(weight, requires_grad=False)
    result = (weight * scale).exp()
    track()
    return result.sum()


def chain(steps):
    value = new(requires_grad=True)
    for _ in range(steps):
        value = value * 1.01
    return value


def trained():
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(new())
    model.register_buffer("mean", new())
    model.weight.sum().backward()
    return model


def adam():
    weight = torch.nn.Parameter(new())
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    track()
    return optimizer


class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, held):
        ctx.extra = held
        ctx.save_for_backward(x)
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


gc.disable()
a_list, a_dict, a_view = [new()], {"key": (1, new())}, new()[100:200]
loss, losses, long_graph = loss_of(), [loss_of(), loss_of()], chain(300)
retained = loss_of()
retained.backward(retain_graph=True)
model, optimizer = trained(), adam()
with_context = Keep.apply(new(requires_grad=True), new())
leaf = new(requires_grad=True)
leaf.sum().backward()
track()


def held():
    return sum(size for size, alive in storages.values() if not alive.expired())


for address, (size, alive) in storages.items():
    if address and not alive.expired():
        print("%x %d" % (address, size))
# Nothing points there, so everything is searched.
print("%x %d" % (0x7E0000000000, 4096))
print("ready", flush=True)
for line in sys.stdin:
    action, name = line.split()
    before = held()
    del globals()[name]
    gc.collect()
    print(before - held(), flush=True)
