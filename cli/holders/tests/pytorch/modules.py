# A model of PyTorch in host memory with gradients, the state of an optimizer, and tensors in attributes. Prints a line for each
# storage: address in hexadecimal, bytes, a tab, and the module that owns it, `-` for none; then "ready", and waits.
import sys

import torch

expected = {}


def expect(tensor, module):
    storage = tensor.untyped_storage()
    expected.setdefault(storage.data_ptr(), (storage.nbytes(), module))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = torch.nn.Linear(32, 64)
        self.norm = torch.nn.BatchNorm1d(64)
        self.linear2 = torch.nn.Linear(64, 32)
        self.seen = []

    def forward(self, x):
        y = self.linear2(self.norm(self.linear1(x)).relu())
        self.last = y.detach().clone()
        self.seen.append(y.detach() + 1)
        return x + y


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(100, 32)
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.head = torch.nn.Linear(32, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = Model()
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.arange(8)
expect(tokens, "-")
for _ in range(2):
    optimizer.zero_grad()
    model(tokens).pow(2).mean().backward()
    optimizer.step()

# A hook that keeps what it sees is held through the parameter, and is not a part of it.
seen = torch.ones(500)
model.layers[0].linear1.weight.register_hook(lambda grad, seen=seen: None)
expect(seen, "-")
del seen
# What a graph saves, and what was made in it, belongs to the module whose parameter is nearest; a loss belongs to none.
first, second = model.layers[0], model.layers[1]
made = second.linear1(torch.nn.functional.gelu(first.linear1(torch.ones(4, 32))).view(8, 32))
expect(made, "__main__.model.layers.1.linear1")
expect(made.grad_fn._saved_mat1, "__main__.model.layers.1.linear1")
gelu = made.grad_fn.next_functions[1][0].next_functions[0][0]
expect(gelu._saved_self, "__main__.model.layers.0.linear1")
del gelu
loss = made.exp().pow(2).mean()
expect(loss.grad_fn.next_functions[0][0]._saved_self, "__main__.model.layers.1.linear1")
expect(loss, "-")
# A parameter without a variable of its module.
alone = torch.nn.Linear(10, 20).weight
expect(alone, "-")
compiled = torch.nn.Sequential(torch.nn.Linear(6, 7))
for name, module in list(model.named_modules(prefix="__main__.model")) + list(compiled.named_modules(prefix="__main__.compiled")):
    for tensor in list(module._parameters.values()) + list(module._buffers.values()):
        if tensor is None:
            continue
        expect(tensor, name)
        if tensor.grad is not None:
            expect(tensor.grad, name)
        for state in optimizer.state.get(tensor, {}).values():
            expect(state, name)
    if isinstance(module, Block):
        for tensor in [module.last] + module.seen:
            expect(tensor, name)
# The variables of the loops.
del state, tensor, module
for address, (bytes, module) in expected.items():
    print("%x %d\t%s" % (address, bytes, module))
print("ready", flush=True)
sys.stdin.readline()
