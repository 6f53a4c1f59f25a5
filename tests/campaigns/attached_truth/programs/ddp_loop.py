"""DDP over gloo, started by torchrun: the data of rank SLOW_RANK alone is slow."""

import os
import sys

import torch

if os.environ["RANK"] != os.environ.get("SLOW_RANK", "1"):
    os.environ["SLOW"] = ""
from slow_data import BATCH, Collate, Texts
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
workers, steps = int(sys.argv[1]), int(sys.argv[2])
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=64, n_embd=64, n_layer=2, n_head=2))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(Texts(), batch_size=BATCH, num_workers=workers, collate_fn=Collate())
step = 0
while step < steps:
    for batch in loader:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == steps:
            break
torch.distributed.destroy_process_group()
