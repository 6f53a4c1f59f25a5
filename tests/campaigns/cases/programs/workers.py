"""A slow store and one loader worker, where four keep up."""

import time

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader, Dataset


class Store(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        time.sleep(0.02)
        return tokens(8)


model, optimizer = build()
for ids in watched(DataLoader(Store(), batch_size=None, num_workers=1 if SLOW else 4)):
    update(model, optimizer, ids)
