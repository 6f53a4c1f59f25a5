"""Two ranks that compute with all cores' threads each."""

import os

import torch
from small import SLOW, build_rank, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build_rank(width=192)
cores = len(os.sched_getaffinity(0))
torch.set_num_threads(cores if SLOW else max(1, cores // 2))
for ids in watched(DataLoader(tokens(150 * 8), batch_size=8)):
    update(model, optimizer, ids)
