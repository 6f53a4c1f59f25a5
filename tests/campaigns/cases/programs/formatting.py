"""A column store that converts a row at a time, all columns of it (huggingface/datasets#6833 and #6637 are alike)."""

import json

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader, Dataset

COLUMNS = {f"column-{place}": [json.dumps(row) for row in tokens(2400).tolist()] for place in range(32)}


class Formatted(Dataset):
    def __len__(self):
        return len(COLUMNS["column-0"])

    def __getitem__(self, index):
        row = {name: torch.tensor(json.loads(column[index])) for name, column in COLUMNS.items()}
        return row["column-0"]


class Selected(Formatted):
    def __getitem__(self, index):
        return torch.tensor(json.loads(COLUMNS["column-0"][index]))


model, optimizer = build(width=32)
for ids in watched(DataLoader(Formatted() if SLOW else Selected(), batch_size=16)):
    update(model, optimizer, ids)
