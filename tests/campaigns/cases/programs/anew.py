"""A DataLoader with workers that is made anew for every few batches (curriculum code)."""

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build()
data = tokens(10 * 8)


def batches():
    loader = DataLoader(data, batch_size=8, num_workers=2, persistent_workers=True)
    for _ in range(20):
        yield from loader
        if SLOW:
            loader = DataLoader(data, batch_size=8, num_workers=2)


for ids in watched(batches()):
    update(model, optimizer, ids)
