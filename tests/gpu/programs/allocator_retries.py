"""Sorts its batches by length, shortest first, on a GPU whose memory is nearly full: no cached block ever fits.

Longest first, the blocks of the first batch fit all others. Both empty the cache after each ten batches, as scripts
do around an evaluation.
"""

import torch
import turns
from documents import Repeated, random_ids
from small_gpt import build, next_token_loss, shape
from torch.utils.data import DataLoader

VOCABULARY = 512
LENGTHS = range(576, 1009, 48)
ROOM = 1.5  # memory that there is, as a multiple of what the longest batch needs; on an H200 1.25 was too little


def step(model, optimizer, ids):
    loss = next_token_loss(model(ids), ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def fill_memory(model, optimizer, ids):
    """Leave the allocator as much memory as if the rest of the device were taken."""
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step(model, optimizer, ids)
    torch.cuda.synchronize()
    needed, (_, total) = torch.cuda.max_memory_allocated(), torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, ROOM * needed / total))


def train(slow, device):
    model, optimizer = build(device, layers=12, width=768, vocabulary=VOCABULARY)
    rows, scale = shape(device, 8, 16)
    lengths = [length * scale // 16 for length in (LENGTHS if slow else reversed(LENGTHS))]
    if device.type == "cuda":
        fill_memory(model, optimizer, random_ids(rows, max(lengths), vocabulary=VOCABULARY).to(device))
    texts = Repeated([random_ids(rows, length, vocabulary=VOCABULARY) for length in lengths])
    for number, ids in enumerate(DataLoader(texts, batch_size=None), 1):
        yield step(model, optimizer, ids.to(device, non_blocking=True))
        if device.type == "cuda" and number % len(lengths) == 0:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    turns.main(train)
