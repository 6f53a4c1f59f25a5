"""Batches of many small Python objects, which the main process unpickles (pytorch/pytorch#123439 is of this kind)."""

import random

import torch
from small import SLOW, VOCABULARY, build, tokens, update, watched
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        values = random.Random(index)
        if not SLOW:
            return tokens(8), torch.zeros(60_000)
        return tokens(8), [{"id": values.random(), "word": str(n % VOCABULARY)} for n in range(60_000)]


model, optimizer = build()
for ids, _ in watched(DataLoader(Rows(), batch_size=None, num_workers=1, collate_fn=lambda rows: rows)):
    update(model, optimizer, ids)
