"""A zoo of PyTorch's holders: each function keeps one block alive in a way of its own. `extension` adds a C++ extension, which
takes a minute to compile."""

import ctypes
import functools
import gc
import logging
import queue
import sys
import threading
import types

import torch

from holding import holds, keep, questions

DEVICE = "cuda"
counter = iter(range(2000, 10**6, 128))
cases = []


def case(function):
    cases.append(function)
    return function


def new(**options):
    """A tensor whose size no other one has."""
    return torch.ones(next(counter), device=DEVICE, **options)


def base(tensor):
    return tensor.untyped_storage().data_ptr()


def kept(name, *texts):
    """A new tensor that the global `name` holds."""
    tensor = new()
    holds(name, base(tensor), "__main__." + name, *texts)
    return tensor


class Cache:
    pass


class Slots:
    __slots__ = ("x", "y")


# ---- Python ----


@case
def containers():
    keep("a_list", [kept("a_list", "[*]", "Tensor")])
    keep("a_dict", {"key": kept("a_dict", "[*]", "Tensor")})
    keep("nested", [{"k": (1, kept("nested", "[*]", "[*]", "[*]"))}])
    keep("a_tensor", kept("a_tensor"))
    batches = queue.Queue()
    batches.put((kept("batches", "queue", "[*]"), 1))
    keep("batches", batches)


@case
def objects():
    cache, slots = Cache(), Slots()
    cache.store = [kept("cache", ".store", "[*]")]
    slots.y = kept("slots", ".y")
    keep("cache", cache)
    keep("slots", slots)
    keep("namespace", types.SimpleNamespace(inner=kept("namespace", ".inner")))


@case
def functions():
    def closure_of(held):
        return lambda: held

    def with_default(held=kept("with_default", "default")):
        return held

    @functools.lru_cache(maxsize=8)
    def features(key):
        return kept("features", "Tensor")

    features("key")
    keep("a_closure", closure_of(kept("a_closure", "closure|held")))
    keep("with_default", with_default)
    keep("features", features)
    keep("a_partial", functools.partial(print, kept("a_partial", ".args", "[*]")))


@case
def suspended():
    def generate(held):
        yield held.shape

    keep("a_generator", generate(kept("a_generator", "local held")))
    next(sys.modules["__main__"].a_generator)


@case
def exceptions():
    class Handler(logging.Handler):
        def __init__(self):
            super().__init__()
            self.records = []

        def emit(self, record):
            self.records.append(record)

    def fails(held):
        raise ValueError(held.numel())

    def caught(name):
        try:
            fails(kept(name, "traceback", "local held"))
        except ValueError as error:
            return error

    def logged(handler):
        logger = logging.Logger("why")
        logger.addHandler(handler)
        try:
            fails(kept("a_handler", ".records", "exc_info", "local held"))
        except ValueError:
            logger.exception("failed")

    keep("an_exception", caught("an_exception"))
    keep("a_handler", Handler())
    logged(sys.modules["__main__"].a_handler)


@case
def threads():
    def work(ready, held_by_thread):
        ready.set()
        threading.Event().wait()
        print(held_by_thread)

    ready, tensor = threading.Event(), new()
    holds("thread", base(tensor), "work", "local held_by_thread")
    threading.Thread(target=work, args=(ready, tensor), daemon=True).start()
    del tensor
    ready.wait()


# ---- modules and optimizers ----


@case
def models():
    model = torch.nn.Module()
    model.layer = torch.nn.Module()
    model.layer.weight = torch.nn.Parameter(new())
    model.layer.register_buffer("mean", new())
    holds("parameter", base(model.layer.weight), "__main__.model", "_modules|layer", "_parameters|weight")
    holds("buffer", base(model.layer.mean), "__main__.model", "_modules|layer", "_buffers|mean")
    model.layer.weight.sum().backward()
    holds("gradient", base(model.layer.weight.grad), "__main__.model", "_parameters|weight", "grad")
    keep("model", model)


@case
def optimizers():
    weight = torch.nn.Parameter(new())
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    weight.grad = None
    for name in ("exp_avg", "exp_avg_sq"):
        holds(name, base(optimizer.state[weight][name]), "__main__.optimizer", ".state", "[*]", "[*]")
    holds("optimizer", base(weight), "__main__.optimizer", "state|param_groups")
    keep("optimizer", optimizer)


@case
def averages():
    model = torch.nn.ParameterList([new()])
    keep("ema", {name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
    holds("ema", base(sys.modules["__main__"].ema["0"]), "__main__.ema", "[*]")


@case
def module_hooks():
    outputs = []
    model = torch.nn.Identity()
    model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    model(kept("hooked", "_forward_hooks", "[*]"))
    keep("hooked", model)


# ---- autograd ----


@case
def graphs():
    """A loss that keeps its graph: exp saves its result, mul the other operand."""
    def loss_of(name):
        weight = new(requires_grad=True)
        scale = torch.ones_like(weight, requires_grad=False)
        result = (weight * scale).exp()
        holds(name + "_saved_result", base(result), "__main__." + name, "grad_fn|SumBackward0", "ExpBackward0")
        holds(name + "_saved_operand", base(scale), "__main__." + name, "MulBackward0")
        holds(name + "_leaf", base(weight), "__main__." + name, "AccumulateGrad")
        return result.sum()

    keep("loss", loss_of("loss"))
    retained = loss_of("retained")
    retained.backward(retain_graph=True)
    keep("retained", retained)
    keep("losses", [loss_of("losses")])


@case
def long_graph():
    value = start = new(requires_grad=True)
    for _ in range(300):
        value = value * 1.01
    holds("long_graph", base(start), "__main__.long_graph", "MulBackward0", "AccumulateGrad")
    keep("long_graph", value)


@case
def tensor_hooks():
    def hook_of(held):
        return lambda gradient: held.sum() * gradient

    tensor = torch.ones(1, device=DEVICE, requires_grad=True)
    tensor.register_hook(hook_of(kept("with_hook", "hook")))
    keep("with_hook", tensor)


@case
def custom_functions():
    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, held):
            ctx.extra = held
            ctx.save_for_backward(x)
            return x.sum()

        @staticmethod
        def backward(ctx, gradient):
            return gradient, None

    x, extra = new(requires_grad=True), new()
    holds("context_attribute", base(extra), "__main__.with_context", "KeepBackward", ".extra")
    holds("context_saved", base(x), "__main__.with_context")
    keep("with_context", Keep.apply(x, extra))


@case
def gradient_of_leaf():
    leaf = new(requires_grad=True)
    leaf.sum().backward()
    holds("leaf.grad", base(leaf.grad), "__main__.leaf", "grad")
    keep("leaf", leaf)


# ---- other ways ----


@case
def views():
    keep("a_view", kept("a_view")[100:200])


@case
def storages():
    tensor = new()
    holds("a_storage", base(tensor), "__main__.a_storage", "Storage")
    keep("a_storage", tensor.untyped_storage())


@case
def capsules():
    tensor = new()
    holds("a_capsule", base(tensor), "__main__.a_capsule", "PyCapsule|capsule")
    keep("a_capsule", torch.utils.dlpack.to_dlpack(tensor))


@case
def key_value_caches():
    caches = []
    for _ in range(2):
        caches.append(tuple((kept("caches", "[*]", "[*]", "[*]"), kept("caches", "[*]", "[*]", "[*]")) for _ in range(2)))
    keep("caches", caches)


@case
def captured_graphs():
    static = torch.ones(next(counter), device=DEVICE)
    static.exp()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        output = static.exp()
    holds("graph_input", base(static), "__main__.captured", "[*]")
    holds("graph_output", base(output), "__main__.captured", "[*]")
    keep("captured", [captured, static, output])


# ---- not held ----


@case
def cycles():
    node = Cache()
    node.itself, node.tensor = node, new()
    holds("cycle", base(node.tensor), "Cache", of="cycle")
    graph = Cache()
    weight = new(requires_grad=True)
    result = weight.exp()
    graph.itself, graph.loss = graph, result.sum()
    holds("cycle_saved_result", base(result), "Cache", of="cycle")
    holds("cycle_leaf", base(weight), "Cache", of="cycle")


@case
def cycles_through_autograd():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.result = x * x
            return ctx.result

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    for wraps in (False, True):
        weight = new(requires_grad=True)
        result = Square.apply(weight)
        if wraps:
            result.untyped_storage()
        holds("context_result", base(result), "SquareBackward", ".result", "grad_fn", of="cycle")
        holds("context_weight", base(weight), "SquareBackward", ".result", of="cycle")
    parameter = torch.nn.Parameter(new())
    parameter.pow(3).sum().backward(create_graph=True)
    holds("with_graph", base(parameter), ".grad", "does not free it", of="cycle")
    holds("gradient_with_graph", base(parameter.grad), ".grad", "does not free it", of="cycle")
    leaf = new(requires_grad=True)
    leaf.loss = leaf * 2
    holds("loss_of_leaf", base(leaf.loss), ".loss", "MulBackward0", "does not free it", of="cycle")
    viewed = new()
    viewed.last = viewed[10:]
    holds("last_of_viewed", base(viewed), ".last", "does not free it", of="cycle")


@case
def over_counted():
    tensor = new()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
    # Its TensorImpl points back to it.
    holds("over_counted", base(tensor), of="over_counted|native_holder")


@case
def lost():
    holds("lost", torch.cuda.caching_allocator_alloc(next(counter) * 4), of="lost")


def extension():
    """Needs ninja and a C++ compiler; built once per TORCH_EXTENSIONS_DIR."""
    from torch.utils.cpp_extension import load_inline

    source = """
    std::vector<at::Tensor> g_cache;
    static std::shared_ptr<std::vector<at::Tensor>> hidden_cache = std::make_shared<std::vector<at::Tensor>>();
    void hold(torch::Tensor tensor) { g_cache.push_back(tensor); }
    void hide(torch::Tensor tensor) { hidden_cache->push_back(tensor); }
    """
    holder = load_inline(name="why_holder", cpp_sources=[source], functions=["hold", "hide"])
    for function, name in ((holder.hold, "g_cache"), (holder.hide, "hidden_cache")):
        tensor = new()
        holds(name, base(tensor), f"{name}|why_holder", of="held|native_holder")
        function(tensor)
        del tensor


def main():
    gc.disable()
    for function in cases:
        function()
    if "extension" in sys.argv:
        extension()
    torch.cuda.synchronize()
    questions(torch.cuda.memory_allocated, torch.cuda.memory_reserved)


if __name__ == "__main__":
    main()
