"""One of two ranks reads slower data, and the other one waits for it in every step."""

import time

import torch
from small import SLOW, build_rank, tokens, update, watched
from torch.utils.data import DataLoader, Dataset


class Store(Dataset):
    def __len__(self):
        return 150

    def __getitem__(self, index):
        time.sleep(0.03 if SLOW and torch.distributed.get_rank() == 1 else 0.001)
        return tokens(4)


model, optimizer = build_rank()
for ids in watched(DataLoader(Store(), batch_size=None)):
    update(model, optimizer, ids)
