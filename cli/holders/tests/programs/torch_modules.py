# Stand-ins of tensors in classes like those of torch.nn. Prints a line for each block: address in hexadecimal, a tab, and the module
# that owns it, `-` for none. Then "ready", and waits.
import ctypes
import gc
import sys

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
number = [0]


class T(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_uint64), ("pad", ctypes.c_uint64)]

    def __hash__(self):
        return id(self)


def t(module):
    number[0] += 1
    at = 0x7F0000000000 + number[0] * 0x100000
    print("%x\t%s" % (at, module), flush=True)
    chunk = libc.calloc(1, 64)
    ctypes.c_uint64.from_address(chunk + 24).value = at
    made = T()
    made.impl = chunk
    return made


class Module:
    def __init__(self):
        self._parameters, self._buffers, self._modules = {}, {}, {}


class Mixin:
    pass


class Linear(Mixin, Module):
    def __init__(self, path):
        super().__init__()
        self._parameters["weight"] = t(path)
        self._parameters["bias"] = None
        self._buffers["mean"] = t(path)


def model_of(name, layers):
    model = Module()
    model._modules["layers"] = inner = Module()
    for nth in range(layers):
        inner._modules[str(nth)] = layer = Module()
        layer._modules["linear1"] = Linear("%s.layers.%d.linear1" % (name, nth))
        layer.cache = [t("%s.layers.%d" % (name, nth))]
    return model


class Optimizer:
    """Its paths to the parameters are the shorter ones."""

    def __init__(self, model):
        layers = model._modules["layers"]._modules.items()
        linears = [(nth, layer._modules["linear1"]) for nth, layer in layers]
        self.parameters = [linear._parameters["weight"] for _, linear in linears]
        self.state = {linear._parameters["weight"]: {"exp_avg": t("__main__.model.layers.%s.linear1" % nth)}
                      for nth, linear in linears}
        self.state[None] = t("-")
        self.extra = t("-")


class Settings(dict):
    """A dictionary that is its own attributes; its class is named as that of modules."""

    def __init__(self):
        super().__init__()
        self.__dict__ = self


Settings.__name__ = "Module"
settings = [Settings(), type("Own", (Settings,), {})()]


class Looser:
    """It has a table of modules, but is none."""

    def __init__(self):
        self._modules = {"weight": t("-")}


model = model_of("__main__.model", 3)
optimizer = Optimizer(model)
models = [model_of("__main__.models[%d]" % nth, 1) for nth in range(2)]
keep = [t("-"), Looser()]

# Weights that two modules share are those of the first.
model._modules["head"] = Module()
model._modules["head"]._parameters["weight"] = model._modules["layers"]._modules["0"]._modules["linear1"]._parameters["weight"]

# The last module around it is the one around all.
around = Module()
around._modules["module"] = model_of("__main__.around.module", 1)
unwrapped = around._modules["module"]

gc.disable()
circle = model_of("(no variable)", 1)
circle.me = circle
del circle
print("ready", flush=True)
sys.stdin.readline()
