"""A progress bar that is drawn in every step, with the norm of each parameter behind it."""

import sys

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader
from tqdm import tqdm

model, optimizer = build(depth=8)
bar = tqdm(watched(DataLoader(tokens(200 * 2), batch_size=2)), total=200, file=sys.stdout)
for number, ids in enumerate(bar):
    update(model, optimizer, ids)
    if SLOW or number % 50 == 0:
        bar.set_postfix({name: f"{one.std():.3f} {one.quantile(0.5):.3f}" for name, one in model.named_parameters()})
