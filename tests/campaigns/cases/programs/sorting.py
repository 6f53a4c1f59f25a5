"""A sampler that sorts all lengths anew for each batch, where once an epoch is enough."""

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader, Sampler

rows = tokens(150 * 8)
lengths = [n * 7919 % 100_003 for n in range(100_000)]


class ByLength(Sampler):
    def __iter__(self):
        order = None
        for number in range(150):
            if SLOW or order is None:
                order = sorted(range(len(lengths)), key=lengths.__getitem__)
            yield [place % len(rows) for place in order[number * 8 : number * 8 + 8]]

    def __len__(self):
        return 150


model, optimizer = build()
for ids in watched(DataLoader(rows, batch_sampler=ByLength())):
    update(model, optimizer, ids)
