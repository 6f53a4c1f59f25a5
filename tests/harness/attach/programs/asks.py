"""A training loop that asks for a profile of itself, as ``harness profile`` would; its first word says how."""

import json
import os
import sys
import time
from pathlib import Path

import torch

how = sys.argv[1]
REQUESTS = {
    "torch": '{"id": "1", "limit_s": 60, "steps": 3}',
    "py-spy": '{"id": "1", "limit_s": 60, "seconds": 1}',
    "late": '{"id": "1", "limit_s": 0.1, "seconds": 0}',
}
folder = Path(os.environ.get("HARNESS_ATTACH", "."))


def file(what):
    return folder / f"{os.getpid()}.profile.{what}"


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
profiler, ready = None, None
for step in range(120):
    if step == 10 and "HARNESS_ATTACH" in os.environ:
        file("asked").write_text(REQUESTS.get(how, REQUESTS["torch"]))
    if step == 10 and how == "own":
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        profiler.start()
    if ready is None and file("ready").exists():
        ready = step
    if how == "py-spy" and ready is not None and step == ready + 10:
        file("over").touch()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.015)
    print(f"{step} {loss.item()!r}")
if profiler is not None:
    profiler.stop()
print("ready:", ready is not None)
print("asked:", file("asked").exists())
print("answer:", json.loads(file("done").read_text()) if file("done").exists() else None)
