"""Trains 30 steps, or comes to an end of the kind that is named after step 20: ``dies.py WAY``, in each rank."""

import os
import signal
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

STEPS, AFTER = 30, 20
WAYS = {
    "ends": lambda: None,
    "sys.exit(7)": lambda: sys.exit(7),
    "raises": lambda: 1 / 0,
    "os._exit(5)": lambda: os._exit(5),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
    "SIGABRT": lambda: os.kill(os.getpid(), signal.SIGABRT),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def main(way: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = DataLoader(TensorDataset(torch.randn(400, 8), torch.randn(400, 1)), batch_size=4)
    for step, (x, y) in zip(range(STEPS), data, strict=False):
        if step == AFTER:
            WAYS[way]()
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
