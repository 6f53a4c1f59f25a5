"""A plain loop over a DataLoader."""

import sys

import torch
from slow_data import BATCH, Collate, Texts
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
workers, steps = int(sys.argv[1]), int(sys.argv[2])
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=64, n_embd=64, n_layer=2, n_head=2))
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(Texts(), batch_size=BATCH, num_workers=workers, collate_fn=Collate())
for step, batch in enumerate(loader):
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step + 1 == steps:
        break
