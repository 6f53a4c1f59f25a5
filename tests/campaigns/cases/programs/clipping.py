"""Gradients are clipped by a Python loop over the rows of each parameter, in every step."""

from small import SLOW, build, loss_of, tokens, watched
from torch import nn
from torch.utils.data import DataLoader

model, optimizer = build(depth=6)


def clip_slowly(parameters):
    total = sum(row.norm().item() ** 2 for one in parameters for row in one.grad) ** 0.5
    for one in parameters:
        one.grad.mul_(min(1.0, 1.0 / total))


for ids in watched(DataLoader(tokens(200 * 2), batch_size=2)):
    optimizer.zero_grad()
    loss_of(model, ids).backward()
    parameters = [*model.parameters()]
    if SLOW:
        clip_slowly(parameters)
    else:
        nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
