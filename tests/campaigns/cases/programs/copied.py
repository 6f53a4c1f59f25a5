"""Loader workers over a large Python list: reading counts references, so that each worker copies its pages."""

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.rows = [{"id": n, "text": f"row {n}"} for n in range(1_000_000)] if SLOW else torch.arange(1_000_000)

    def __len__(self):
        return 1600

    def __getitem__(self, index):
        for n in range(500):
            self.rows[index * 500 + n]
        return tokens(8)


model, optimizer = build(width=192)
for ids in watched(DataLoader(Rows(), batch_size=None, num_workers=2)):
    update(model, optimizer, ids)
