"""A hook on each gradient that copies and sorts it (a debugging aid that stayed)."""

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build(depth=4)
seen = {}
if SLOW:
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: seen.__setitem__(name, gradient.flatten().sort()[0][-1]))
for ids in watched(DataLoader(tokens(150 * 8), batch_size=8)):
    update(model, optimizer, ids)
