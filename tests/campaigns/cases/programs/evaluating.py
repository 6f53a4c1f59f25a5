"""The whole validation set is evaluated every 20 steps."""

import torch
from small import SLOW, build, loss_of, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build()
validation = DataLoader(tokens(100 * 8 if SLOW else 4 * 8), batch_size=8)
for number, ids in enumerate(watched(DataLoader(tokens(200 * 8), batch_size=8))):
    update(model, optimizer, ids)
    if number % 20 == 19:
        with torch.no_grad():
            print(number, sum(loss_of(model, one).item() for one in validation) / len(validation))
