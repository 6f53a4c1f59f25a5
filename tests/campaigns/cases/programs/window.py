"""A store that answers slowly for every 16th batch: the queue of one worker's batches drains."""

import time

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader, Dataset


class Uneven(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        if SLOW and index % 16 == 15:
            time.sleep(0.4)
        return tokens(8)


model, optimizer = build()
for ids in watched(DataLoader(Uneven(), batch_size=None, num_workers=1)):
    update(model, optimizer, ids)
