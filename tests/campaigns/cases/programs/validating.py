"""A validation that makes autograd graphs, all of which its sum keeps: no_grad() and item() are missing."""

from contextlib import nullcontext

import torch
from small import SLOW, build, loss_of, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build()
validation = DataLoader(tokens(60 * 16), batch_size=16)
for number, ids in enumerate(watched(DataLoader(tokens(200 * 8), batch_size=8))):
    update(model, optimizer, ids)
    if number % 20 == 19:
        with nullcontext() if SLOW else torch.no_grad():
            print(number, sum(loss_of(model, one) for one in validation) / len(validation))
