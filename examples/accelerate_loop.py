"""A loop with accelerate's Accelerator, recorded by a tracker. Needs accelerate."""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from harness import AccelerateTracker

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--out", default="results")
arguments = parser.parse_args()
torch.manual_seed(0)

tracker = AccelerateTracker(out=arguments.out)
accelerator = Accelerator(log_with=tracker)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(8192, 64), torch.randn(8192, 1)), batch_size=32)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
accelerator.init_trackers("mine")  # begins the recording
step = 0
while step < arguments.steps:
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss.item()}, step=step)
        step += 1
        if step == arguments.steps:
            break
accelerator.end_training()  # ends it
if accelerator.is_main_process:
    print(f"study: {tracker.study}")
