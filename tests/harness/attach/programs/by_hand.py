"""A loop without a DataLoader: ``get_batch`` as in nanoGPT, which fetches the next batch before the backward pass."""

import sys
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.randint(0, 64, (10_000,), generator=torch.Generator().manual_seed(1))
steps, fetch_ms = int(sys.argv[1]), float(sys.argv[2])


def get_batch(split):
    time.sleep(fetch_ms / 1000)
    ix = torch.randint(len(data) - 17, (4,))
    x = torch.stack([data[i : i + 16] for i in ix])
    y = torch.stack([data[i + 1 : i + 17] for i in ix])
    return x, y


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.head = torch.nn.Linear(32, 64)

    def forward(self, x, y):
        return torch.nn.functional.cross_entropy(self.head(self.embed(x)).view(-1, 64), y.view(-1))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = get_batch("train")
for step in range(steps):
    loss = model(x, y)
    x, y = get_batch("train")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"{step} {loss.item()!r}")
