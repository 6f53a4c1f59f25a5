"""Each 4th batch of a rank is slow, by turns of the ranks, so that every 2nd step waits for one of them."""

import time

import torch
from small import SLOW, build_rank, tokens, update, watched
from torch.utils.data import DataLoader, Dataset


class Store(Dataset):
    def __len__(self):
        return 150

    def __getitem__(self, index):
        time.sleep(0.03 if SLOW and (index + 2 * torch.distributed.get_rank()) % 4 == 0 else 0.001)
        return tokens(4)


model, optimizer = build_rank()
for ids in watched(DataLoader(Store(), batch_size=None)):
    update(model, optimizer, ids)
