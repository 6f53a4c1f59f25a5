"""A loop whose batches come from a thread of its own through a queue: a wait that no seam of torch shows."""

import queue
import sys
import threading
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
steps, make_ms = int(sys.argv[1]), float(sys.argv[2])
wanted, batches = queue.Queue(), queue.Queue()


def produce():
    g = torch.Generator().manual_seed(0)
    while wanted.get():
        time.sleep(make_ms / 1000)
        batches.put(torch.randn(4, 16, generator=g))


threading.Thread(target=produce, daemon=True).start()
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(steps):
    wanted.put(True)
    x = batches.get()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{step} {loss.item()!r}")
