"""Garbage collections of two ranks in different steps, each of which all ranks wait for (pytorch/torchtitan#148)."""

import gc

import torch
from small import SLOW, build_rank, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build_rank()
heap = [{"row": n, "next": []} for n in range(400_000)]
gc.disable()
for number, ids in enumerate(watched(DataLoader(tokens(200 * 4), batch_size=4))):
    if number % 10 == (5 * torch.distributed.get_rank() if SLOW else 0):
        gc.collect()
    update(model, optimizer, ids)
