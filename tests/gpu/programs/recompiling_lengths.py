"""Compiles a model for fixed shapes, and pads to the longest text of a batch: each new length is compiled anew."""

import os
import random

import torch
import turns
from documents import Repeated, random_ids
from small_gpt import build, next_token_loss, shape
from torch.utils.data import DataLoader

VOCABULARY = 512
LENGTHS = range(384, 640)
SAME = 10  # steps in a row of one length


def lengths_of_batches(longest):
    """Return lengths in an order of this process's own; ``longest``: one for all."""
    order = random.Random(os.getpid()).sample(LENGTHS, len(LENGTHS))
    return [LENGTHS.stop if longest else length for length in order for _ in range(SAME)]


def train(slow, device):
    torch._dynamo.config.recompile_limit = 64
    model, optimizer = build(device, layers=1, width=512, vocabulary=VOCABULARY)
    compiled = torch.compile(model, dynamic=False, backend="inductor" if device.type == "cuda" else "aot_eager")
    rows, _ = shape(device, 8, max(LENGTHS))
    lengths = lengths_of_batches(longest=not slow)
    texts = Repeated([random_ids(rows, length, vocabulary=VOCABULARY) for length in lengths])
    for ids in DataLoader(texts, batch_size=None, pin_memory=device.type == "cuda"):
        ids = ids.to(device, non_blocking=True)
        loss = next_token_loss(compiled(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


if __name__ == "__main__":
    turns.main(train)
