"""Loaders whose datasets give their items to workers in different ways, which begin anew, or whose sampler is slow.

WAY [STEPS]
"""

import itertools
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

torch.set_num_threads(1)
WAY, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30
DRAW_S = 0.05  # of an epoch's order
SLOW_S = 60.0  # an item of worker 1 where that is slow: longer than the program runs
CHOOSE_S = 0.005  # of an item
LEFT_AFTER = {"left": 6, "left-persistent": 6, "left-inline": 6, "one-batch": 1}  # batches of each epoch


def document(item):
    return torch.randint(0, 50_000, (64,), generator=torch.Generator().manual_seed(item))


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        if WAY == "slow-stream" and info.id == 1:
            time.sleep(SLOW_S)
        if WAY == "copied":
            mine = range(4 * STEPS)
        else:  # one shard, or a shard for each worker
            shards = 1 if WAY == "one-shard" else info.num_workers
            mine = [] if info.id >= shards else range(info.id, 8 * STEPS, shards)
        for item in mine:
            time.sleep(0.002)
            yield document(item)


class Rows(Dataset):
    def __len__(self):
        return 12 if WAY == "sampler" else 8 * STEPS

    def __getitem__(self, item):
        if WAY == "slow-rows" and get_worker_info().id == 1:
            time.sleep(SLOW_S)
        return torch.full((8,), item)


class Many(Rows):
    def __len__(self):
        return 4000

    def __getitem__(self, item):
        time.sleep(0.002)
        return super().__getitem__(item)


class Drawn(Sampler):
    def __len__(self):
        return 12

    def __iter__(self):
        time.sleep(DRAW_S)
        return iter(range(12))


class Chosen(Sampler):
    def __iter__(self):
        for item in range(4000):
            time.sleep(CHOOSE_S)
            yield item


def epochs(loader):
    while True:
        yield from itertools.islice(loader, LEFT_AFTER.get(WAY))


def main():
    if WAY == "sampler":
        loader = DataLoader(Rows(), batch_size=2, sampler=Drawn())
    elif WAY.startswith("slow"):  # torch 2.6 and later: batches in any order, so that a slow worker holds up none
        loader = DataLoader(Rows() if WAY == "slow-rows" else Stream(), batch_size=2, num_workers=2, in_order=False)
    elif WAY in ("chosen", "chosen-inline"):
        loader = DataLoader(Many(), batch_size=2, sampler=Chosen(), num_workers=2 if WAY == "chosen" else 0)
    elif WAY in LEFT_AFTER:
        workers = 0 if WAY == "left-inline" else 2
        loader = DataLoader(Many(), batch_size=2, num_workers=workers, persistent_workers=WAY == "left-persistent")
    else:
        loader = DataLoader(Stream(), batch_size=2, num_workers=4 if WAY == "one-shard" else 2)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch in itertools.islice(epochs(loader), STEPS):
        loss = model(batch[:, :8] / 5e4).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
