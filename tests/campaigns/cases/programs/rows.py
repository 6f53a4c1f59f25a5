"""An array in memory that is read row by row (pytorch/pytorch#106704 is of this kind)."""

import numpy as np
import torch
from small import SLOW, watched
from torch import nn
from torch.utils.data import DataLoader, Dataset

ARRAY = np.random.default_rng(1).random((100 * 4096, 8), dtype=np.float32)


class Rows(Dataset):
    def __len__(self):
        return len(ARRAY)

    def __getitem__(self, index):
        return torch.from_numpy(ARRAY[index])


class Batches(Rows):
    def __getitems__(self, indices):
        return torch.from_numpy(ARRAY[indices])


torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(Rows(), 4096) if SLOW else DataLoader(Batches(), 4096, collate_fn=lambda rows: rows)
for rows in watched(loader):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
