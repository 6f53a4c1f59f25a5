"""A loop of short steps that times itself: prints microseconds a step, the median of its rounds.

--torch-profiler: each round under it; --traceml: its steps marked for TraceML, which sees none of a plain loop else.
"""

import statistics
import sys
import time
from contextlib import nullcontext

import torch
from torch.utils.data import DataLoader, TensorDataset

WARMUP, ROUNDS, STEPS = 200, 20, 100
torch.manual_seed(0)
torch.set_num_threads(1)
profiled = "--torch-profiler" in sys.argv
marked = nullcontext
if "--traceml" in sys.argv:
    import traceml_ai

    traceml_ai.init()
    marked = traceml_ai.trace_step
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(4 * 100_000, 64), torch.randn(4 * 100_000, 1))
batches = iter(DataLoader(data, batch_size=4))


def steps(count):
    for _ in range(count):
        x, y = next(batches)
        with marked(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


steps(WARMUP)
rounds = []
for _ in range(ROUNDS):
    with torch.profiler.profile() if profiled else nullcontext():
        begun = time.perf_counter()
        steps(STEPS)
        rounds.append((time.perf_counter() - begun) / STEPS * 1e6)
print(f"us a step: {statistics.median(rounds):.2f}", flush=True)
