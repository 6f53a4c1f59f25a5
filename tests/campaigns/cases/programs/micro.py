"""Two ranks that synchronize gradients in each of 8 micro-batches: no_sync() is missing."""

from contextlib import nullcontext

from small import SLOW, build_rank, loss_of, tokens, watched
from torch.utils.data import DataLoader

model, optimizer = build_rank(width=512, depth=4)
for number, ids in enumerate(watched(DataLoader(tokens(60 * 8 * 1), batch_size=1))):
    last = number % 8 == 7
    with nullcontext() if SLOW or last else model.no_sync():
        loss_of(model, ids).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
