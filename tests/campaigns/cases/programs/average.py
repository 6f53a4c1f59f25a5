"""An average of the weights (EMA) that is a deep copy of the model in every step."""

import copy

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build(width=256, depth=4)
average = copy.deepcopy(model)
for number, ids in enumerate(watched(DataLoader(tokens(200), batch_size=1))):
    update(model, optimizer, ids)
    if SLOW or number % 50 == 0:
        new = copy.deepcopy(model)
        with torch.no_grad():
            for old, one in zip(average.parameters(), new.parameters(), strict=True):
                one.mul_(0.01).add_(old, alpha=0.99)
        average = new
