"""The same small training over loaders of many kinds, by name. Each prints a line a step: its number and its loss.

Everything is seeded, and every step draws from the global random state (dropout), as some loaders and their workers do:
a draw or a batch more, or one in another order, changes the losses that follow.
"""

import itertools
import sys
from collections import namedtuple

import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

torch.manual_seed(0)
torch.set_num_threads(1)
STEPS, BATCH = 24, 4
ROWS = torch.randn(54, 8, generator=torch.Generator().manual_seed(1))  # no multiple of a batch: epochs end unevenly
Named = namedtuple("Named", "x")


class Mapped(Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return ROWS[index]


class Augmented(Mapped):
    def __getitem__(self, index):
        return ROWS[index] + 0.1 * torch.randn(8)


class AtOnce(Mapped):
    def __getitems__(self, indices):
        return [ROWS[index] for index in indices]


class Streamed(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        yield from (ROWS[index] for index in range(first, len(ROWS), stride))


def named(rows):
    return Named(torch.stack(rows))


def seeded(number):
    torch.manual_seed(100 + number)


def by_hand():
    while True:
        yield ROWS[torch.randint(len(ROWS), (BATCH,))]


def of_datasets():
    from datasets import Dataset as Table

    return Table.from_dict({"x": ROWS.tolist()})


def doubled(rows):
    return {"x": [[2 * value for value in row] for row in rows["x"]]}


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Mapped(), batch_size=BATCH, shuffle=True, num_workers=1)


def generator():
    return torch.Generator().manual_seed(2)


KINDS = {
    "in-order": lambda: DataLoader(Mapped(), batch_size=BATCH),
    "shuffled": lambda: DataLoader(Mapped(), batch_size=BATCH, shuffle=True),
    "own-generator": lambda: DataLoader(Mapped(), batch_size=BATCH, shuffle=True, generator=generator()),
    "drop-last": lambda: DataLoader(Mapped(), batch_size=BATCH, drop_last=True),
    "workers": lambda: DataLoader(Augmented(), batch_size=BATCH, shuffle=True, num_workers=2),
    "persistent-workers": lambda: DataLoader(
        Augmented(), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=4
    ),
    "worker-init": lambda: DataLoader(Augmented(), batch_size=BATCH, num_workers=2, worker_init_fn=seeded),
    "iterable": lambda: DataLoader(Streamed(), batch_size=BATCH),
    "iterable-workers": lambda: DataLoader(Streamed(), batch_size=BATCH, num_workers=2),
    "chained-iterables": lambda: DataLoader(ChainDataset([Streamed(), Streamed()]), batch_size=BATCH),
    "batch-sampler": lambda: DataLoader(Mapped(), batch_sampler=BatchSampler(RandomSampler(ROWS), BATCH, False)),
    "weighted-sampler": lambda: DataLoader(
        Mapped(), batch_size=BATCH, sampler=WeightedRandomSampler(list(range(1, 55)), 54)
    ),
    "distributed-sampler": lambda: DataLoader(
        Mapped(), batch_size=BATCH, sampler=DistributedSampler(Mapped(), num_replicas=2, rank=0)
    ),
    "no-batching": lambda: DataLoader(Mapped(), batch_size=None, shuffle=True),
    "getitems": lambda: DataLoader(AtOnce(), batch_size=BATCH, shuffle=True),
    "own-collate": lambda: DataLoader(Mapped(), batch_size=BATCH, shuffle=True, collate_fn=named),
    "subsets": lambda: DataLoader(
        ConcatDataset([Subset(Mapped(), range(0, 54, 2)), TensorDataset(ROWS)]), batch_size=BATCH, collate_fn=mixed
    ),
    "by-hand": by_hand,
    # With torchdata, and with datasets.
    "stateful": stateful,
    "hf-map": lambda: DataLoader(
        of_datasets().map(doubled, batched=True).with_format("torch"), batch_size=BATCH, shuffle=True
    ),
    "hf-transform": lambda: DataLoader(of_datasets().with_transform(transformed), batch_size=BATCH, num_workers=1),
    "hf-streaming": lambda: DataLoader(
        of_datasets().to_iterable_dataset().shuffle(seed=3, buffer_size=20).with_format("torch"), batch_size=BATCH
    ),
}  # fmt: skip
NEEDS = {"stateful": "torchdata", "hf-map": "datasets", "hf-transform": "datasets", "hf-streaming": "datasets"}


def mixed(rows):
    return torch.stack([row[0] if isinstance(row, tuple) else row for row in rows])


def transformed(rows):
    return {"x": [torch.tensor(row) + 0.1 * torch.randn(8) for row in rows["x"]]}


def batches(loader):
    while True:
        yield from loader


def main():
    loader = KINDS[sys.argv[1]]()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step, batch in enumerate(itertools.islice(batches(loader), STEPS)):
        x = batch["x"] if isinstance(batch, dict) else batch.x if isinstance(batch, Named) else batch
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{step} {loss.item()!r}")


if __name__ == "__main__":
    main()
