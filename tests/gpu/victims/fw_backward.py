"""Programs whose backward passes keep tensors; the first argument selects one. For each tensor they print the Python lines that
made it: on autograd's thread, and on the thread that called `backward()`, which waits."""

import os
import sys
import threading

import torch
from torch.utils.checkpoint import checkpoint

from printing import here, in_backward, leave, lines, result, say

DEVICE = "cuda"
KEPT = []


class Keep(torch.autograd.Function):
    """Keeps a tensor that its backward makes."""

    @staticmethod
    def forward(context, value, label):
        context.label, context.caller = label, threading.current_thread()
        return value * 2

    @staticmethod
    def backward(context, gradient):
        if threading.get_ident() == context.caller.ident:
            frames, made = here(sys._getframe()), gradient * 3
        else:
            frames, made = in_backward(sys._getframe(), context.caller), gradient * 3
        kept(context.label, frames, made)
        return gradient * 2, None


def kept(label, frames, *tensors):
    KEPT.append((label, frames, tensors))


def needs_devices(count):
    """With fewer, `DataParallel` only calls the module."""
    if torch.cuda.device_count() < count:
        say("UNSUPPORTED", os.getpid(), count, "GPUs")
        sys.exit(0)


def layer():
    return torch.nn.Linear(64, 64).to(DEVICE)


def batch():
    return torch.randn(32, 64).to(DEVICE)


def loss(label, inside=lambda value: value):
    return Keep.apply(inside(layer()(batch())), label).sum()


def native():
    """Gradients that operators of PyTorch make, without Python on autograd's thread."""
    model = layer()
    given = model(batch()).sum()
    frames = here(sys._getframe()); given.backward()
    kept("native", frames, model.weight.grad, model.bias.grad)
    given = model(batch()).sum()
    frames = here(sys._getframe()); made = torch.autograd.grad(given, model.weight)
    kept("grad", frames, *made)


def custom():
    loss("custom").backward()


def hook():
    value, main = layer()(batch()), threading.current_thread()

    def keep(gradient):
        frames, made = in_backward(sys._getframe(), main), gradient + 1
        kept("hook", frames, made)

    value.register_hook(keep)
    value.sum().backward()


def checkpointed():
    for reentrant in (False, True):
        model = layer()
        # Called again within backward, on autograd's thread.
        part = lambda value: model(value).relu()
        value = checkpoint(part, batch().requires_grad_(), use_reentrant=reentrant)
        Keep.apply(value, f"checkpointed_{reentrant}").sum().backward()


class Reenter(torch.autograd.Function):
    @staticmethod
    def forward(context, value, caller):
        context.caller = caller
        return value * 2

    @staticmethod
    def backward(context, gradient):
        with torch.enable_grad():
            inner = layer()(batch()).sum()
            frames = in_backward(sys._getframe(), context.caller); made = torch.autograd.grad(inner.exp(), inner)
        kept("inner", frames, *made)
        return gradient * 2, None


def reentrant():
    Reenter.apply(layer()(batch()), threading.current_thread()).sum().backward()


def generator():
    def steps():
        loss("generator").backward()
        yield

    next(steps())


def threads():
    """Two threads that wait at the same time, for passes of one device."""
    both = threading.Barrier(2)

    def first():
        for _ in range(20):
            both.wait()
            loss("first").backward()

    def second():
        for _ in range(20):
            both.wait()
            loss("second").backward()

    started = [threading.Thread(target=one) for one in (first, second)]
    [one.start() for one in started]
    [one.join() for one in started]


def fails():
    """A pass that an exception ends, and the next one."""

    def refuse(gradient):
        raise ValueError("refused")

    for _ in range(50):
        value = layer()(batch())
        value.register_hook(refuse)
        try:
            value.sum().backward()
        except ValueError:
            pass
    loss("after_failure").backward()


def ddp():
    torch.distributed.init_process_group("nccl", init_method=f"file://{os.getcwd()}/group.{os.getpid()}", rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(layer(), device_ids=[0])
    Keep.apply(model(batch()), "ddp").sum().backward()


def data_parallel():
    """One pass over the replicas on all devices, whose forward passes ran in threads of their own."""
    needs_devices(2)
    model = torch.nn.DataParallel(torch.nn.Sequential(layer(), layer()))
    Keep.apply(model(batch()), "data_parallel").sum().backward()


def two_devices():
    """One pass whose nodes run on two threads, one for each device."""
    needs_devices(2)
    first, second = torch.nn.Linear(64, 64).to("cuda:0"), torch.nn.Linear(64, 64).to("cuda:1")
    value = Keep.apply(first(batch()), "first_device").to("cuda:1")
    given = Keep.apply(second(value), "second_device").sum()
    frames = here(sys._getframe()); given.backward()
    kept("two_devices", frames, first.weight.grad, second.weight.grad)


def extension():
    """A function in C++, whose node is none of PyTorch's. Needs ninja and a C++ compiler."""
    from torch.utils.cpp_extension import load_inline

    source = """
    using namespace torch::autograd;
    static at::Tensor last;
    struct Doubled : Function<Doubled> {
        static at::Tensor forward(AutogradContext *, at::Tensor value) { return value * 2; }
        static tensor_list backward(AutogradContext *, tensor_list given) {
            last = given[0] * 3;
            return {given[0] * 2};
        }
    };
    at::Tensor doubled(at::Tensor value) { return Doubled::apply(value); }
    at::Tensor made() { return last; }
    """
    native = load_inline(name="doubled", cpp_sources=[source], functions=["doubled", "made"])
    given = native.doubled(layer()(batch())).sum()
    frames = here(sys._getframe()); given.backward()
    kept("extension", frames, native.made())


def compiled():
    model = torch.compile(torch.nn.Sequential(layer(), torch.nn.GELU(), layer()))
    given = Keep.apply(model(batch()), "compiled").sum()
    frames = here(sys._getframe()); given.backward()
    kept("compiled_gradient", frames, *(parameter.grad for parameter in model.parameters()))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = layer(), layer()

    def forward(self, value):
        value = self.first(value)  # site: forward_first
        value = torch.nn.functional.gelu(value)  # site: forward_gelu
        value = self.second(value)  # site: forward_second
        value = value.exp()  # site: forward_exp
        return value * value  # site: forward_mul


def forward():
    """What each node of the last pass makes is kept under the name of its operator's line."""
    model = Net().to(DEVICE)
    for _ in range(3):
        model.zero_grad()
        model(batch()).pow(2).mean().backward()
    value, seen = model(batch()), set()
    names, node = ["forward_mul", "forward_exp", "forward_second", "forward_gelu", "forward_first"], value.grad_fn
    for name in names:

        def keep(inputs, outputs, name=name):
            for tensor in inputs:
                if tensor is not None and tensor.untyped_storage().data_ptr() not in seen:
                    seen.add(tensor.untyped_storage().data_ptr())
                    KEPT.append((name, here(sys._getframe()), (tensor,)))

        node.register_hook(keep)
        # The bias of a layer is first, and then its input.
        node = node.next_functions[1 if len(node.next_functions) == 3 else 0][0]
    value.pow(2).mean().backward()


def training():
    """A transformer's steps; a snapshot in the middle of backward."""
    import ctypes

    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(128, 8, 512, batch_first=True), 6).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(4):
        optimizer.zero_grad()
        value = model(torch.randn(8, 64, 128, device=DEVICE))
        if number == 3 and hasattr(ctypes.CDLL(None), "culeak_snapshot"):
            # A hook that returns something replaces the gradient.
            model.layers[0].linear1.weight.register_hook(lambda gradient: (ctypes.CDLL(None).culeak_snapshot(b"backward"), None)[1])
        value.pow(2).mean().backward()  # site: training_backward
        optimizer.step()


MODES = (native, custom, hook, checkpointed, reentrant, generator, threads, fails, ddp, data_parallel, two_devices, extension, compiled, forward, training)
torch.manual_seed(1)
{mode.__name__: mode for mode in MODES}[sys.argv[1]]()
torch.cuda.synchronize()
for label, frames, tensors in KEPT:
    for tensor in tensors:
        lines(label, tensor.untyped_storage().data_ptr(), frames)
result("kept", len(KEPT))
leave()
