"""A Python number that the compiled model reads changes in each step, and each value is a new graph."""

import torch
from small import SLOW, build, tokens, update, watched
from torch import nn
from torch.utils.data import DataLoader

torch._dynamo.config.specialize_float = True  # else the second value makes a graph for all of them


class Scaled(nn.Module):
    scale = 1.0

    def forward(self, hidden):
        return hidden * self.scale


model, optimizer = build()
scaled = Scaled()
model = nn.Sequential(model, scaled)
model.compile(backend="aot_eager")
for number, ids in enumerate(watched(DataLoader(tokens(200 * 8), batch_size=8))):
    if SLOW and number % 25 == 20:  # after the steps that are not measured
        scaled.scale = 1.0 + number * 1e-3
    update(model, optimizer, ids)
