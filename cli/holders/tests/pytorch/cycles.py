# Tensors of PyTorch in host memory that only cycles through Python and C++ hold. Prints a line for each: address in hexadecimal,
# bytes, how the cycle's text begins (`-`: there is no cycle), and what else is said, if anything; then "ready". Runs the collector
# when a line is read, and prints "collected".
import ctypes
import gc
import sys
import weakref

import torch


def tensor(expected, note="", of=None, **options):
    made = torch.ones(4096, **options) if of is None else of
    print("%x %d\t%s\t%s" % (made.data_ptr(), made.numel() * made.element_size(), expected, note))
    return made


KEPT = "gc.collect() does not free it"
HOOK = "remove the hook: handle.remove()"


def function(wraps_storage):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.result = tensor("SquareBackward.result → Tensor.grad_fn", "ctx.save_for_backward", x * x)
            if wraps_storage:
                ctx.result.untyped_storage().data_ptr()
            return ctx.result

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Square


def context():
    weight = tensor("SquareBackward.result", requires_grad=True)
    for square in (function(False), function(True)):
        square.apply(weight)


def context_of_a_saved_tensor():
    left = []

    class Saving(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            saved = torch.ones(4096)
            saved.context = ctx
            ctx.save_for_backward(saved)
            left.append(weakref.ref(saved))
            return x.new_ones(4)

    Saving.apply(torch.ones(4, requires_grad=True))
    # Older versions of PyTorch free it with the node.
    if left[0]() is not None:
        tensor("", KEPT, left[0]())


def gradient_with_a_graph():
    weight = torch.nn.Parameter(tensor("Tensor.grad → Tensor.grad_fn → CopyBackwards", KEPT + "; set .grad to None"))
    weight.pow(3).sum().backward(create_graph=True)
    tensor("Tensor.grad → Tensor.grad_fn → CopyBackwards", KEPT + "; set .grad to None", weight.grad)


def hook_of_a_leaf():
    leaf = tensor("Tensor", HOOK, requires_grad=True)
    leaf.register_hook(lambda gradient, leaf=leaf: gradient)


def hook_of_a_result():
    result = tensor("Tensor", KEPT + "; " + HOOK, torch.ones(4096, requires_grad=True) * 2)
    result.register_hook(lambda gradient, result=result: gradient)


def hook_after_accumulation():
    leaf = tensor("Tensor", KEPT + "; " + HOOK, requires_grad=True)
    leaf.register_post_accumulate_grad_hook(lambda _, leaf=leaf: None)


def hooks_of_a_node():
    for register in ("register_hook", "register_prehook"):
        result = tensor("Tensor.grad_fn → MulBackward0", KEPT + "; " + HOOK, torch.ones(4096, requires_grad=True) * 2)
        getattr(result.grad_fn, register)(lambda *_, result=result: None)


def hook_of_a_module():
    module = torch.nn.Linear(64, 64)
    module.register_forward_hook(lambda *_, module=module: None)
    tensor("Linear._forward_hooks", HOOK, module.weight.detach())


def loss_of_a_leaf():
    leaf = tensor("Tensor.loss → Tensor.grad_fn → MulBackward0", KEPT, requires_grad=True)
    leaf.loss = tensor("Tensor.loss → Tensor.grad_fn → MulBackward0", KEPT, leaf * 2)


def view():
    base = tensor("Tensor.last → Tensor", KEPT + "; keep view.clone() instead of the view")
    base.last = base[10:]


def never_released():
    counted = tensor("-")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(counted))
    counted = tensor("-", requires_grad=True)
    counted.loss = tensor("-", of=counted * 2)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(counted.loss))


gc.disable()
context()
context_of_a_saved_tensor()
gradient_with_a_graph()
hook_of_a_leaf()
hook_of_a_result()
hook_after_accumulation()
hooks_of_a_node()
hook_of_a_module()
loss_of_a_leaf()
view()
never_released()
# Nothing points there, so everything is searched.
print("%x %d\t-\t" % (0x7E0000000000, 4096))
print("ready", flush=True)
sys.stdin.readline()
gc.collect()
print("collected", flush=True)
sys.stdin.readline()
