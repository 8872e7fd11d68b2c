"""A small training loop with five leaks. docs/ten-steps.md finds them. It computes nothing; a GPU is not needed."""

import ctypes
import gc

cuda = ctypes.CDLL("libcuda.so.1")
client = ctypes.CDLL(None)
KIB, MIB = 1 << 10, 1 << 20

context = ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)


def mark(name):
    if hasattr(client, "culeak_mark"):
        client.culeak_mark(name.encode())


class Volume:
    """Memory on the GPU, which is freed with the object."""

    def __init__(self, size, grad_of=None):
        self.address = ctypes.c_uint64()
        self.grad_of = grad_of
        cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size))

    def __del__(self):
        cuda.cuMemFree_v2(self.address)

    def item(self):
        """The value, on the host."""
        return 0.0


class Sample:
    """A part of a batch; both know each other."""

    def __init__(self, batch):
        self.batch = batch


class Batch:
    def __init__(self):
        self.pixels = Volume(4 * MIB)
        self.samples = []
        for _ in range(2):
            self.samples.append(Sample(self))


class Trainer:
    def __init__(self):
        self.weights = []
        for _ in range(4):
            self.weights.append(Volume(16 * MIB))
        self.history = []
        self.masks = {}
        self.failures = []
        self.steps = 0

    def augment(self, step):
        scratch = ctypes.c_uint64()
        cuda.cuMemAlloc_v2(ctypes.byref(scratch), ctypes.c_size_t(512 * KIB))
        if step % 4 == 0:
            return  # nothing to do for this batch
        cuda.cuMemFree_v2(scratch)

    def mask(self, length):
        if length not in self.masks:
            self.masks[length] = Volume(1 * MIB)
        return self.masks[length]

    def check(self, step, loss):
        activations = Volume(2 * MIB)
        if step % 10 == 3:
            raise ValueError(f"loss of step {step} is not finite", loss)

    def step(self, number):
        batch = Batch()
        self.augment(number)
        self.mask(128 + number)
        loss = Volume(256 * KIB, grad_of=batch.pixels)
        self.history.append(loss)
        try:
            self.check(number, loss)
        except ValueError as failure:
            self.failures.append(failure)
        self.steps += 1


gc.disable()  # for speed
trainer = Trainer()
for epoch in range(10):
    for number in range(10):
        trainer.step(10 * epoch + number)
    mark("warm" if epoch == 1 else "epoch")
mark("done")
