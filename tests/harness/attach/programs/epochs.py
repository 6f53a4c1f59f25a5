"""A loop whose epochs end slowly: ten batches, then 30 ms of a file that holds nothing more. Last it uses the model."""

import time

import torch
from torch.utils.data import DataLoader, IterableDataset


class Text(IterableDataset):
    def __iter__(self):
        for i in range(10):
            time.sleep(0.002)
            yield torch.full((4,), float(i))
        time.sleep(0.03)


class Net(torch.nn.Linear):
    wait = 0.004

    def forward(self, x):
        time.sleep(self.wait)
        return super().forward(x)


model = Net(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = DataLoader(Text(), batch_size=1)
step = 0
while step < 45:
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == 45:
            break
model.wait = 0.5
print("at the end", model(batch))
