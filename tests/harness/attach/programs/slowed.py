"""Trains a small model that one cause slows, by name; without the name it is the same program without the cause.

Each step prints its number and its loss. ``STEPS`` steps, unless the second word gives another number.
"""

import mmap
import sys
import tempfile
import time
from contextlib import nullcontext

import torch
from torch.utils.data import DataLoader, TensorDataset

CAUSE = sys.argv[1] if len(sys.argv) > 1 else ""
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 60
HOOK_S = 0.0004
MEMORY_S, KEPT = 0.015, 200_000
kept = []
if CAUSE == "memory-mapped":
    with tempfile.TemporaryFile() as file:
        file.truncate(4 * KEPT * STEPS)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
torch.manual_seed(0)
torch.set_num_threads(1)


def slow_hook(*_given):
    time.sleep(HOOK_S)


def evaluate(model, data):
    with nullcontext() if CAUSE == "evaluation-graphs" else torch.no_grad():
        for x, y in DataLoader(data, batch_size=4):
            torch.nn.functional.mse_loss(model(x), y)


def wrapped(model):
    if not CAUSE.startswith("parallel"):
        return model
    from torch.nn.parallel import DistributedDataParallel

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return DistributedDataParallel(model, find_unused_parameters=CAUSE == "parallel-unused")


def train():
    inner = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = wrapped(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    passes = 2 if CAUSE.startswith("parallel") else 1
    data = TensorDataset(torch.randn(4 * STEPS * passes, 8), torch.randn(4 * STEPS * passes, 1))
    batches = iter(DataLoader(data, batch_size=4))
    for step in range(STEPS):
        for number in range(passes):
            x, y = next(batches)
            if CAUSE == "parallel-accumulating" and number < passes - 1:
                with model.no_sync():
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    loss.backward()
            else:
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if CAUSE == "hooks":
            inner[0].register_forward_hook(slow_hook)
        if CAUSE.startswith("evaluation") and step % 10 == 9:
            evaluate(model, TensorDataset(torch.ones(16, 8), torch.ones(16, 1)))
        if CAUSE == "evaluation-one-graph" and step == STEPS // 2:
            for x, _ in DataLoader(TensorDataset(torch.ones(4, 8), torch.ones(4, 1)), batch_size=4):
                inner(x)
        if CAUSE.startswith("memory"):
            time.sleep(MEMORY_S)
            kept.append(torch.ones(KEPT if CAUSE == "memory" else 1))
        if CAUSE == "memory-mapped":
            sum(mapped[4 * KEPT * step : 4 * KEPT * (step + 1) : mmap.PAGESIZE])
        print(f"{step} {loss.item()!r}")


if CAUSE == "anomaly":
    torch.autograd.set_detect_anomaly(True)
if CAUSE == "profiled-a-while":
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=4, repeat=1)) as profiler:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: profiler.step())
        train()
else:
    train()
