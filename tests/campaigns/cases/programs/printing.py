"""The gradients of the embedding are printed in full in each step."""

import sys

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

torch.set_printoptions(threshold=100_000)
model, optimizer = build()
for ids in watched(DataLoader(tokens(150 * 8), batch_size=8)):
    loss = update(model, optimizer, ids)
    if SLOW:
        print(loss.item(), model[0].weight.grad[:200], file=sys.stderr)
