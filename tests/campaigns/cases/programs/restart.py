"""Short epochs whose loader workers are started anew each time (pytorch/pytorch#15849 and many others)."""

from itertools import chain, repeat

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build()
loader = DataLoader(tokens(10 * 8), batch_size=8, num_workers=2, persistent_workers=not SLOW)
for ids in watched(chain.from_iterable(repeat(loader, 25))):
    update(model, optimizer, ids)
