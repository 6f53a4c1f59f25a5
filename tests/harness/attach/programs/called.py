"""A function that trains; its dataset is found by loader workers under this module's name."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, pause_ms):
        self.pause_ms = pause_ms

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        time.sleep(self.pause_ms / 4000)
        return torch.full((16,), float(i % 7))


def train(workers, collate_ms=0):
    import harness  # the user's own module of that name

    print(sys.argv[0], harness.mine, flush=True)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    loader = DataLoader(
        Numbers(collate_ms), batch_size=4, num_workers=workers, multiprocessing_context="spawn" if workers else None
    )
    while True:
        for batch in loader:
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
