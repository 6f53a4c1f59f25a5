"""A training whose own code is slow at one place; it prints what that takes, in milliseconds a step from step 20 on.

What it does, by its first argument:

- ``log``: sleeps in every step; ``again``: the same, first in a thread and then in the main thread
- ``save``: sleeps in every tenth step
- ``gc``: collects garbage over a large heap in every step
- ``busy``: runs Python in every step; ``brief``: for a few milliseconds, right before the next forward pass
- ``fork``: forks a child in every step, and prints how many threads the process had then
- ``thread``: another thread runs Python meanwhile
- ``none``: none of that
"""

import gc
import os
import statistics
import sys
import threading
import time

threads = []
# Registered before torch comes, and so called after what is registered later.
os.register_at_fork(before=lambda: threads.append(len(os.listdir("/proc/self/task"))))

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

KIND, STEPS = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
gc.callbacks.append(lambda phase, info: None)  # where a look that a collection delayed finds the program
gc.freeze()  # a collection then takes what the objects below take, and not what torch holds
heap = [{"number": i, "pair": [i]} for i in range(30_000)] if KIND == "gc" else []
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def slow(step):
    if KIND in ("log", "again"):
        time.sleep(0.02)
    elif KIND == "save" and step % 10 == 9:
        time.sleep(0.2)
    elif KIND == "gc":
        gc.collect()
    elif KIND == "fork" and step >= 20:
        time.sleep(0.02)  # a look at the stack comes meanwhile
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    elif KIND == "busy":
        sum(i * i for i in range(200_000))


def brief():
    if KIND == "brief":
        sum(i * i for i in range(30_000))


def train():
    spent_s = 0.0
    for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(STEPS * 4, 64)), batch_size=4)):
        begun = time.perf_counter()
        brief()
        spent_s += (time.perf_counter() - begun) * (step >= 20)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        begun = time.perf_counter()
        slow(step)
        spent_s += (time.perf_counter() - begun) * (step >= 20)
        print(step, repr(float(model[2].bias.detach()[0])))
    print(f"SPENT {spent_s / (STEPS - 20) * 1e3}")


def run_python():
    while not ended:
        sum(range(1000))


ended = False
other = threading.Thread(target=run_python)
if KIND == "thread":
    other.start()
if KIND == "again":
    first = threading.Thread(target=train)
    first.start()
    first.join()
train()
ended = True
if threads:
    print(f"THREADS {statistics.median_high(threads)}")
