"""A loop that says itself what it does, as in a notebook."""

import time

import torch
from torch.utils.data import DataLoader, Dataset

import harness

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Slow(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.full((16,), float(i))


def train(steps, by_hand=False):
    for _ in range(steps):
        if by_hand:
            harness.step()
        with harness.span("fetch"):
            with harness.span("read"):
                time.sleep(0.003)
            with harness.span("tokenize"):
                x = torch.randn(4, 16)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_from_loader(steps):
    """The fetch that is marked holds that of a DataLoader, and more."""
    batches = iter(DataLoader(Slow(), batch_size=4, num_workers=0))
    for _ in range(steps):
        with harness.span("fetch"):
            x = next(batches)
            with harness.span("tokenize"):
                time.sleep(0.002)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


train(3, by_hand=True)  # outside of a block the marks do nothing
with harness.record("out") as recording:
    train(12)  # a fetch that is marked opens a step
    train(12, by_hand=True)
print("recorded", recording.study)
with harness.record("out") as recording:
    train_from_loader(24)
print("loader", recording.study)
try:
    with harness.record("out"), harness.record("out"):
        pass
except RuntimeError as error:
    print(error)
