"""More loader workers than cores, each of which computes: the training waits for a core."""

import os

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader, Dataset


class Hashed(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, index):
        rows = tokens(8)
        for _ in range(300 if SLOW else 3):
            rows = rows.sort(dim=1).values
        return rows


model, optimizer = build()
workers = 6 * len(os.sched_getaffinity(0)) if SLOW else 1
for ids in watched(DataLoader(Hashed(), batch_size=None, num_workers=workers)):
    update(model, optimizer, ids)
