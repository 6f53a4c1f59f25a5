"""Data of the training scripts in this folder: a few rows of random token ids, over and over."""

import random

import torch
from small_gpt import VOCABULARY
from torch.utils.data import DataLoader, Dataset

DROPPED, UNKNOWN = 0.1, 0


class Repeated(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        return self.rows[place % len(self.rows)]


class DroppedTokens(Repeated):
    """Rows that are lists of numbers; some tokens of each are dropped as it is served."""

    def __getitem__(self, place):
        chance = random.Random(place)
        return [UNKNOWN if chance.random() < DROPPED else one for one in super().__getitem__(place)]


def random_ids(*shape, vocabulary=VOCABULARY):
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(0))


def document_loader(device, rows, length):
    """Return a loader that makes its batches in the training process, as loaders do by default."""
    documents = DroppedTokens(random_ids(64, length).tolist())
    return DataLoader(documents, batch_size=rows, collate_fn=torch.tensor, pin_memory=device.type == "cuda")
