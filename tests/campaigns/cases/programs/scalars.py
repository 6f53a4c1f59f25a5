"""Rows are lists of NumPy scalars: the default collate function makes a tensor of each column."""

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader, Dataset

rows = tokens(160 * 16, length=400).numpy()


class Rows(Dataset):
    def __len__(self):
        return len(rows)

    def __getitem__(self, index):
        return list(rows[index]) if SLOW else rows[index]


model, optimizer = build()
for batch in watched(DataLoader(Rows(), batch_size=16)):
    update(model, optimizer, (torch.stack(batch, 1) if SLOW else batch)[:, :32])
