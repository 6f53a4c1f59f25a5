"""Processes that prepare the data of the next epoch compute on all cores: the training waits for a core."""

import multiprocessing
import os

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader


def prepare():
    while True:
        sorted(hash((number, "row")) for number in range(10_000))


model, optimizer = build()
for _ in range(2 * len(os.sched_getaffinity(0)) if SLOW else 0):
    multiprocessing.get_context("fork").Process(target=prepare, daemon=True).start()
for ids in watched(DataLoader(tokens(300 * 8), batch_size=8)):
    update(model, optimizer, ids)
