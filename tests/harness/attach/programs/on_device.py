"""A training loop beside a device that is made up: ``on_device STEPS DATA_MS``. Each step keeps that busy for 6 ms.

``on_device STEPS DATA_MS DEVICE_MS``: for so long, and the host waits for it at every hundredth step only.
``on_device STEPS DATA_MS DEVICE_MS LAUNCH_MS``: for so long, and the host takes so long to launch its kernels.

What the agent asks of torch.cuda is answered from the host's own clock: a queue, and events that are reached in order.
"""

import atexit
import sys
import time
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader, Dataset

STEPS, DATA_MS = int(sys.argv[1]), float(sys.argv[2])
DEVICE_MS = float(sys.argv[3]) if len(sys.argv) > 3 else 6.0
RARELY = 100 if len(sys.argv) == 4 else 0
LAUNCH_MS = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
KERNELS = 20
queue = SimpleNamespace(free=0.0)


def launch(device_ms):
    for _ in range(KERNELS):
        until = time.monotonic() + LAUNCH_MS * device_ms / DEVICE_MS / KERNELS / 1e3
        while time.monotonic() < until:
            pass
        queue.free = max(queue.free, time.monotonic()) + device_ms / KERNELS / 1e3


class Event:
    def __init__(self, **_options):
        self.at = 0.0

    def record(self, _stream):
        self.at = max(time.monotonic(), queue.free)

    def query(self):
        return time.monotonic() >= self.at

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


def synchronize():
    while time.monotonic() < queue.free:
        pass


torch.cuda.Event = Event
torch.cuda.current_stream = lambda _device: SimpleNamespace(synchronize=synchronize)
torch.cuda.is_current_stream_capturing = lambda: False
if RARELY:
    asked = []
    torch.cuda.is_initialized = lambda: True
    torch.cuda.synchronize = lambda: (asked.append(0), synchronize())
    atexit.register(lambda: print("others waited for the device", len(asked), "times"))
torch.cuda.get_device_name = lambda _device: "a made-up device"
if agent := sys.modules.get("_harness_agent.device"):
    trains_on = agent.trains_on
    agent.trains_on = lambda _device: trains_on(SimpleNamespace(type="cuda"))


class Text(Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, i):
        until = time.monotonic() + DATA_MS / 1e3
        while time.monotonic() < until:
            pass
        return torch.full((4,), float(i))


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step, batch in enumerate(DataLoader(Text(), batch_size=1)):
    loss = model(batch).sum()
    launch(DEVICE_MS / 3)
    optimizer.zero_grad()
    loss.backward()
    launch(DEVICE_MS / 2)
    optimizer.step()
    launch(DEVICE_MS / 6)
    if RARELY and step % RARELY:
        continue
    while queue.free - time.monotonic() > 0.006:  # no more than a step ahead, as where a loss is read one step late
        pass
