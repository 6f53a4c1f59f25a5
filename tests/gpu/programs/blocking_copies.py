"""Distils a small model from stored logits of a larger one: 64 MB of fp32 for each batch of 2 x 1024 tokens."""

import torch
import turns
from documents import Repeated, random_ids
from small_gpt import VOCABULARY, build, shape
from torch.nn import functional
from torch.utils.data import DataLoader

STORED = 4  # batches


def stored_batches(rows, length, pinned):
    ids = random_ids(STORED, rows, length)
    logits = torch.randn((STORED, rows, length, VOCABULARY), generator=torch.Generator().manual_seed(0))
    if pinned:
        ids, logits = ids.pin_memory(), logits.pin_memory()
    return Repeated(list(zip(ids, logits, strict=True)))


def train(slow, device):
    model, optimizer = build(device, layers=8, width=512)
    pinned = not slow and device.type == "cuda"
    for ids, teacher in DataLoader(stored_batches(*shape(device, 2, 1024), pinned), batch_size=None):
        ids = ids.to(device, non_blocking=pinned)
        teacher = teacher.to(device, non_blocking=pinned)
        wanted, given = teacher.log_softmax(-1), model(ids).float().log_softmax(-1)
        loss = functional.kl_div(given, wanted, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


if __name__ == "__main__":
    turns.main(train)
