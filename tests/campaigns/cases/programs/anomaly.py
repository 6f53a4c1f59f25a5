"""Anomaly detection, which was switched on to find a NaN, is left on."""

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build(depth=8)
torch.autograd.set_detect_anomaly(SLOW)
for ids in watched(DataLoader(tokens(200 * 2), batch_size=2)):
    update(model, optimizer, ids)
