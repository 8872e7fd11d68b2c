"""Programs that print for every allocation the Python lines that made it; the first argument selects the framework. Nothing is
freed, so that every allocation is live at the end."""

import functools
import sys
import threading

from printing import here, in_backward, leave, lines, result

KEPT = []


def torch():
    import torch

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            context.save_for_backward(value)
            context.caller = threading.current_thread()
            ask("forward")
            return value * value

        @staticmethod
        def backward(context, gradient):
            ask("backward", caller=context.caller)
            (value,) = context.saved_tensors
            return 2 * value * gradient

    def training():
        value = torch.ones(10, device="cuda", requires_grad=True)
        Square.apply(value).sum().backward()
        result("gradient", value.grad.sum().item())

    return torch.empty, {"dtype": torch.uint8, "device": "cuda"}, torch.Tensor.data_ptr, training


def cupy():
    import cupy

    cupy.cuda.set_allocator(None)
    return cupy.empty, {"dtype": cupy.uint8}, lambda array: array.data.ptr, lambda: result("sum", int(cupy.arange(100).sum()))


def numba():
    import numpy as np

    if not hasattr(np, "row_stack"):  # see fw_numba.py
        np.row_stack = np.vstack
    from numba import cuda

    return cuda.device_array, {"dtype": np.uint8}, lambda array: array.__cuda_array_interface__["data"][0], lambda: None


def ask(label, size=4096, caller=None):
    account = (lambda frame: in_backward(frame, caller)) if caller else here
    # On one line, so that this frame's own line is the same for both.
    frames, thing = account(sys._getframe()), MAKE(size + len(KEPT), **OPTIONS)
    KEPT.append(thing)
    lines(label, ADDRESS(thing), frames)
    return len(KEPT)


class Trainer:
    def step(self):
        frames, thing = here(sys._getframe()), MAKE(1_000_003, **OPTIONS)
        KEPT.append(thing)
        lines("step", ADDRESS(thing), frames)

    def batches(self):
        for number in range(2):
            yield ask("generator")

    @property
    def attribute(self):
        return ask("property")


def recursive(depth):
    return recursive(depth - 1) if depth else ask("recursion")


def decorated(function):
    @functools.wraps(function)
    def around(*arguments):
        return function(*arguments)

    return around


@decorated
def under_a_decorator():
    return ask("decorator")


def main():
    trainer = Trainer()
    trainer.step()
    list(trainer.batches())
    trainer.attribute
    recursive(20)
    under_a_decorator()
    [ask("comprehension") for _ in range(2)]
    list(map(lambda label: ask(label), ["lambda"]))
    sorted([2, 1], key=lambda _: ask("key"))
    exec(compile("def made():\n\n    return ask('generated')\nmade()", "generated_é.py", "exec"), globals())
    thread = threading.Thread(target=recursive, args=(3,))
    thread.start()
    thread.join()
    try:
        raise ValueError
    except ValueError:
        ask("handler")
    TRAINING()
    result("live", len(KEPT))
    leave()


MAKE, OPTIONS, ADDRESS, TRAINING = {f.__name__: f for f in (torch, cupy, numba)}[sys.argv[1]]()
main()
