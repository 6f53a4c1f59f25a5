"""Rare tokens are filtered in pure Python, in the loop after the batch was fetched."""

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build()


def cleaned(ids):
    return [[token for token in row if token not in list(range(480, 500))] for row in ids.tolist()]


for ids in watched(DataLoader(tokens(200 * 64), batch_size=64)):
    if SLOW:
        cleaned(ids)
    update(model, optimizer, ids[:8])
