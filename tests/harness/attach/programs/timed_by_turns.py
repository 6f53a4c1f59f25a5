"""A loop of short steps that switches the agent's hooks on and off by turns and times its own steps.

Prints a line for each turn: its state and the median and mean microseconds of a step. Without the agent all are off.
"""

import statistics
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

WARMUP, ROUNDS, STEPS = 200, int(sys.argv[1]), 50
STATES = ("off", "on", "on without run queue")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
count = 4 * (WARMUP + (ROUNDS + 1) * len(STATES) * STEPS)
data = TensorDataset(torch.randn(count, 64), torch.randn(count, 1))
batches = iter(DataLoader(data, batch_size=4))
agent = sys.modules.get("_harness_agent.guard")
run_queue = sys.modules.get("_harness_agent.run_queue")
read = getattr(run_queue, "read", None)


def step():
    x, y = next(batches)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def switch(state):
    if agent is not None:
        agent.on = state != "off"
        run_queue.read = read if state == "on" else tuple


for _ in range(WARMUP):
    step()
for turn in range(ROUNDS):
    for place in range(len(STATES)):
        state = STATES[(place + turn) % len(STATES)]
        switch(state)
        for _ in range(5):  # caches, and the step that is open
            step()
        took = []
        for _ in range(STEPS - 5):
            begun = time.perf_counter_ns()
            step()
            took.append((time.perf_counter_ns() - begun) / 1e3)
        print(f"{state}: {statistics.median(took):.2f} {statistics.fmean(took):.2f}", flush=True)
switch("on")
