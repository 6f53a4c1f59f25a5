"""A thread trains three steps of a small model and ends; then the loop of plain.py trains in the main thread."""

import runpy
import threading
from pathlib import Path

import torch


def warm_up():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


thread = threading.Thread(target=warm_up)
thread.start()
thread.join()
runpy.run_path(str(Path(__file__).with_name("plain.py")), run_name="__main__")
