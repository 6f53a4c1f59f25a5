"""A training loop that waits for a device which is made up: ``waits STEPS [MODE]``, with torch's mode of sync warnings.

Each step keeps the device busy for 6 ms. The program copies its batch, reads its loss and synchronizes; every third
step the allocator retries. At its end it prints what of it was changed meanwhile, and what warnings came to it.
"""
# ruff: noqa: F821 - the library below defines these names

import json
import os
import sys
import sysconfig
import time
import warnings
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[1])
DEVICE_S = 0.006
device = SimpleNamespace(free=0.0, mode=int(sys.argv[2]) if len(sys.argv) > 2 else 0, modes=[], retries=0)


class Monitoring:
    """Stands in for sys.monitoring, which Python has from 3.12 on; this one reports the calls of the library below."""

    events = SimpleNamespace(CALL=1 << 4, LINE=1 << 5)

    def __init__(self):
        self.tools, self.callbacks, self.local = {}, {}, {}

    def get_tool(self, tool):
        return self.tools.get(tool)

    def use_tool_id(self, tool, name):
        assert tool not in self.tools
        self.tools[tool] = name

    def free_tool_id(self, tool):
        del self.tools[tool]

    def register_callback(self, tool, event, function):
        self.callbacks[tool, event] = function

    def set_local_events(self, tool, code, events):
        assert tool in self.tools
        self.local[tool, code] = events

    def report(self, code):
        for tool in self.tools:
            if self.local.get((tool, code), 0) & self.events.CALL:
                self.callbacks[tool, self.events.CALL](code, 0, None, None)


sys.monitoring = monitoring = Monitoring()

# Calls of torch that wait: of a library, as torch is one.
LIBRARY = """
def wait():
    begun = time.monotonic()
    while time.monotonic() < device.free:
        pass
    return time.monotonic() - begun

def synchronize():
    waited.append(wait())

def item(loss):
    monitoring.report(item.__code__)
    wait()
    if device.mode:
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", UserWarning)
    return loss.detach().numpy().tolist()

def copied(batch):
    monitoring.report(copied.__code__)
    wait()
    if device.mode:
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", UserWarning)
    return batch

def set_mode(mode):
    warnings.warn("Synchronization debug mode is a prototype feature", UserWarning)
    device.mode = mode
    device.modes.append(mode)
"""
exec(compile(LIBRARY, os.path.join(sysconfig.get_paths()["stdlib"], "made_up.py"), "exec"))


waited = []  # seconds, by step


def launch():
    device.free = max(device.free, time.monotonic()) + DEVICE_S / 3


class Event:
    def __init__(self, **_options):
        self.at = 0.0

    def record(self, _stream):
        self.at = max(time.monotonic(), device.free)

    def query(self):
        return time.monotonic() >= self.at

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


torch.cuda.Event = Event
torch.cuda.current_stream = lambda _device: SimpleNamespace(synchronize=wait)
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.get_device_name = lambda _device: "a made-up device"
torch._C._cuda_set_sync_debug_mode = set_mode
torch._C._cuda_get_sync_debug_mode = lambda: device.mode
torch._C._cuda_synchronize = synchronize
torch._C._cuda_memoryStats = lambda _device: {"num_alloc_retries": device.retries}
if agent := sys.modules.get("_harness_agent.device"):
    trains_on = agent.trains_on
    agent.trains_on = lambda _device: trains_on(SimpleNamespace(type="cuda", index=0))


class Rows(Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, i):
        return torch.full((1 << 17,), float(i))


torch.manual_seed(0)
model = torch.nn.Linear(1 << 17, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
state = lambda: (list(warnings.filters), warnings.showwarning, torch._C._cuda_synchronize)  # noqa: E731
before, caught = state(), 0
added = [] if sys.argv[2:] else [("error", None, Warning, None, 0)]
for step, batch in enumerate(DataLoader(Rows(), batch_size=1)):
    batch = copied(batch)
    loss = model(batch).sum()
    launch()
    optimizer.zero_grad()
    loss.backward()
    launch()
    optimizer.step()
    launch()
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("error")
        if not device.mode or not sys.argv[2:]:
            item(loss)  # no warning of which is an error here
        caught += len(given)
    if step == 5 and not sys.argv[2:]:
        warnings.simplefilter("error")  # for the rest of the program
    print(step, repr(item(loss)))
    launch()
    torch._C._cuda_synchronize()
    if step % 3 == 0:
        device.retries += 1
        time.sleep(0.02)
idle = not monitoring.tools and not any(monitoring.local.values()) and not any(monitoring.callbacks.values())
print(
    json.dumps(
        {
            "restored": state() == ([*added, *before[0]], *before[1:]) and idle,
            "caught": caught,
            "mode": device.mode,
            "waited": waited,
            "modes": device.modes,
        }
    )
)
