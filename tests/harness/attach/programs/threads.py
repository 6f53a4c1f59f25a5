"""The loop of plain.py, with its arguments but the first, in other threads than the main one: ``threads HOW ...``.

- ``one``: in a thread, as a notebook's or a server's job; ``two``: in two threads at once
- ``first``: a thread trains three steps of a small model and ends, then the loop runs in the main thread
"""

import runpy
import sys
import threading
from pathlib import Path

import torch

how = sys.argv.pop(1)


def train():
    runpy.run_path(str(Path(__file__).with_name("plain.py")), run_name="__main__")


def warm_up():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


threads = [threading.Thread(target=warm_up if how == "first" else train) for _ in range(1 + (how == "two"))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if how == "first":
    train()
