"""One of the shards is slow, and its worker makes every second batch."""

import time

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __iter__(self):
        slow = SLOW and get_worker_info().id == 0
        for _ in range(100):
            time.sleep(0.03 if slow else 0.003)
            yield tokens(8)


model, optimizer = build()
for ids in watched(DataLoader(Shards(), batch_size=None, num_workers=2)):
    update(model, optimizer, ids)
