"""Nothing is slow but the model: both variants are the same."""

from small import build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build(width=192)
for ids in watched(DataLoader(tokens(150 * 8), batch_size=8)):
    update(model, optimizer, ids)
