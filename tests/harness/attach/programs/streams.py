"""Loaders whose datasets give their items to workers in different ways, and one with a slow sampler: WAY [STEPS]."""

import itertools
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

torch.set_num_threads(1)
WAY, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30
DRAW_S = 0.05  # of an epoch's order
SLOW_S = 60.0  # an item of worker 1 where that is slow: longer than the program runs


def document(item):
    return torch.randint(0, 50_000, (64,), generator=torch.Generator().manual_seed(item))


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        if WAY == "slow-stream" and info.id == 1:
            time.sleep(SLOW_S)
        if WAY in ("copied", "line-numbers"):
            mine = range(4 * STEPS)
        elif WAY == "constant":
            mine = [0] * (4 * STEPS)
        else:  # one shard, or a shard for each worker
            shards = 1 if WAY == "one-shard" else info.num_workers
            mine = [] if info.id >= shards else range(info.id, 8 * STEPS, shards)
        for item in mine:
            time.sleep(0.002)
            if WAY == "line-numbers":  # the tensor has the place of a document within its shard
                yield torch.full((8,), item), f"document {item} of shard {info.id}"
            else:
                yield document(item)


class Rows(Dataset):
    def __len__(self):
        return 12 if WAY == "sampler" else 8 * STEPS

    def __getitem__(self, item):
        if WAY == "slow-rows" and get_worker_info().id == 1:
            time.sleep(SLOW_S)
        return torch.full((8,), item)


class Drawn(Sampler):
    def __len__(self):
        return 12

    def __iter__(self):
        time.sleep(DRAW_S)
        return iter(range(12))


def epochs(loader):
    while True:
        yield from loader


def main():
    if WAY == "sampler":
        loader = DataLoader(Rows(), batch_size=2, sampler=Drawn())
    elif WAY.startswith("slow"):  # torch 2.6 and later: batches in any order, so that a slow worker holds up none
        loader = DataLoader(Rows() if WAY == "slow-rows" else Stream(), batch_size=2, num_workers=2, in_order=False)
    else:
        loader = DataLoader(Stream(), batch_size=2, num_workers=4 if WAY == "one-shard" else 2)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch in itertools.islice(epochs(loader), STEPS):
        numbers = batch[0] if WAY == "line-numbers" else batch
        loss = model(numbers[:, :8] / 5e4).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
