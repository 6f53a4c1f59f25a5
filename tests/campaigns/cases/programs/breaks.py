"""A look at the numbers breaks the graph of the compiled model after each of its layers."""

import torch
from small import SLOW, build, tokens, update, watched
from torch import nn
from torch.utils.data import DataLoader


class Watched(nn.Module):
    def forward(self, hidden):
        if SLOW:
            torch._dynamo.graph_break()
        return hidden


model, optimizer = build(depth=12)
model = nn.Sequential(*[one for layer in model for one in (layer, Watched())])
model.compile(backend="aot_eager")
for ids in watched(DataLoader(tokens(300 * 2), batch_size=2)):
    update(model, optimizer, ids)
