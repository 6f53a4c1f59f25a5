"""A copy of all weights is saved in every 10th step, as one file."""

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build(width=256, depth=4)
for number, ids in enumerate(watched(DataLoader(tokens(200 * 2), batch_size=2))):
    update(model, optimizer, ids)
    if number % (10 if SLOW else 199) == 9:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
