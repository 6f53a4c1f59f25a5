"""Trains 30 steps. After 3, a library in C forks it, unknown to Python: the child trains another 27 by itself.

The fork comes before the agent starts a thread. With a second thread, of whomever, such a child can wait forever for a
thread that it does not have: only Python's own fork forgets that another thread asked for the interpreter's lock.
"""

import ctypes
import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
child = None
data = TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
for step, (x, y) in zip(range(30), DataLoader(data, batch_size=4)):
    if step == 3:
        child = ctypes.PyDLL(None).fork()
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if child != 0:
        print(f"{step} {loss.item()!r}")
if child == 0:
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(f"child: {child}, ended with {code}")
sys.exit(code != 0)
