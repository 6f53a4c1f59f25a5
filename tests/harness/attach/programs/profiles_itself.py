"""A training loop with a profiler of its own, as its first word says: torch's (at some step) or Python's."""

import cProfile
import sys

import torch

how = sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
profiler, steps = None, range(0)
if how == "python":
    profiler = cProfile.Profile()
    profiler.enable()
elif how in ("early", "within", "late"):
    first = {"early": 0, "within": 8, "late": 14}[how]
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=first, warmup=1, active=3, repeat=1),
    )
    profiler.start()

for step in range(24):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{step} {loss.item()!r}")
    if how in ("early", "within", "late"):
        profiler.step()

if how == "python":
    profiler.disable()
    print("its own:", len(profiler.getstats()) > 10)
elif profiler is not None:
    profiler.stop()
    print("its own:", any(event.key == "aten::linear" for event in profiler.key_averages()))
