"""A metric of every parameter in every step, one by one in Python (a tracker's histograms)."""

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build(depth=6)


def histograms():
    return [parameter.grad.flatten().histc(64).tolist() for parameter in model.parameters()]


for number, ids in enumerate(watched(DataLoader(tokens(200 * 8), batch_size=8))):
    update(model, optimizer, ids)
    if SLOW or number % 100 == 0:
        histograms()
