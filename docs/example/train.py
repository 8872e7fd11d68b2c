"""A training loop on PyTorch that keeps each output; with the argument `fixed` it keeps their means. docs/site/record.sh records it."""

import sys

import torch
from torch import nn

FIXED = "fixed" in sys.argv[1:]


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.inputs = {}
        self.outputs = []

    def load(self, key):
        if key not in self.inputs:  # a cache, which fills
            self.inputs[key] = torch.randn(512, 2048, device="cuda")
        return self.inputs[key]

    def step(self, number):
        output = self.model(self.load(number % 48))
        loss = output.square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.outputs.append(output.mean().item() if FIXED else output.detach())


trainer = Trainer()
for epoch in range(8):
    for number in range(32):
        trainer.step(32 * epoch + number)
    torch.cuda.synchronize()
    torch.cuda.nvtx.mark("epoch")
