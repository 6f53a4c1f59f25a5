"""Many more threads than cores compute one small model (OMP_NUM_THREADS of another machine)."""

import os

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build(width=192)
torch.set_num_threads(16 if SLOW else len(os.sched_getaffinity(0)))
for ids in watched(DataLoader(tokens(150 * 16), batch_size=16)):
    update(model, optimizer, ids)
