"""torch.profiler stays on for the whole training (no schedule)."""

from contextlib import nullcontext

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build(depth=8)
with torch.profiler.profile(with_stack=True, record_shapes=True) if SLOW else nullcontext():
    for ids in watched(DataLoader(tokens(120 * 2), batch_size=2)):
        update(model, optimizer, ids)
