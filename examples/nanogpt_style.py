"""A training loop without a DataLoader: ``get_batch`` takes windows out of one long array of tokens, as in nanoGPT."""

import argparse

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
arguments = parser.parse_args()
LENGTH, BATCH = 64, 8
torch.manual_seed(0)
data = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint16)


def get_batch():
    starts = torch.randint(len(data) - LENGTH, (BATCH,))
    return torch.stack([torch.from_numpy(data[start : start + LENGTH].astype(np.int64)) for start in starts])


model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = get_batch()
for step in range(arguments.steps):
    loss = model(input_ids=ids, labels=ids).loss
    ids = get_batch()  # the next one
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
