"""A plain loop over a DataLoader."""

import os
import sys
from contextlib import nullcontext

import torch
from slow_data import BATCH, Collate, Texts
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
workers, steps = int(sys.argv[1]), int(sys.argv[2])
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=64, n_embd=64, n_layer=2, n_head=2))
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(Texts(), batch_size=BATCH, num_workers=workers, collate_fn=Collate())
marked = nullcontext
if os.environ.get("MARK_FOR_TRACEML"):
    import traceml_ai

    traceml_ai.init()
    marked = traceml_ai.trace_step
for step, batch in enumerate(loader):
    with marked(model):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if step + 1 == steps:
        break
