"""A training loop that asks for a profile of itself, as ``harness profile`` would; its first word says how."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch

how = sys.argv[1]
REQUESTS = {
    "torch": '{"id": "1", "limit_s": 60, "steps": 3}',
    "py-spy": '{"id": "1", "limit_s": 60, "seconds": 1}',
    "late": '{"id": "1", "limit_s": 0.1, "seconds": 0}',
    "nan": '{"id": "1", "limit_s": NaN, "steps": 3}',
    "threads": '{"id": "1", "limit_s": 60, "steps": 100}',
    "many": '{"id": "1", "limit_s": 60, "steps": 101}',
    "malformed": '{"steps": ',
    "no-object": "[]",
}
folder = Path(os.environ.get("HARNESS_ATTACH", "."))


def file(what):
    return folder / f"{os.getpid()}.profile.{what}"


if how == "other-user":
    os.getuid = lambda: os.stat(folder).st_uid + 1
if how == "ranks":  # under --steps
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2"}
    if "_harness_agent" in sys.modules:
        sys.modules["_harness_agent.boundaries"].measuring.most_steps = 1000
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
profiler, ready = None, None


def train(first, last):
    global profiler, ready
    for step in range(first, last):
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


if how == "threads":  # the second trains after the first
    for part in ((0, 70), (70, 120)):
        thread = threading.Thread(target=train, args=part)
        thread.start()
        thread.join()
else:
    train(0, 120)
if profiler is not None:
    profiler.stop()
print("ready:", ready is not None)
print("asked:", file("asked").exists())
print("answer:", json.loads(file("done").read_text()) if file("done").exists() else None)
