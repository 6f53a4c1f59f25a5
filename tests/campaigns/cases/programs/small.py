"""What the programs share: a small model, its update, and the wall time of a step that a watch would show."""

import sys
import time

import torch
from torch import nn

SLOW = sys.argv[1] == "slow"
VOCABULARY = 500


def build(width=96, depth=2):
    """A small language model and its optimizer, the same each time."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    body = [
        layer for _ in range(depth) for layer in (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    ]
    model = nn.Sequential(nn.Embedding(VOCABULARY, width), *body, nn.Linear(width, VOCABULARY))
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def build_rank(width=96, depth=2, **options):
    """The same for a rank of several. ``options``: of DistributedDataParallel."""
    torch.distributed.init_process_group("gloo")
    model, optimizer = build(width, depth)
    return nn.parallel.DistributedDataParallel(model, **options), optimizer


def tokens(rows, length=32):
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def loss_of(model, ids):
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def update(model, optimizer, ids):
    loss = loss_of(model, ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def watched(batches):
    """Yield the batches; afterwards print the wall time of a step from the second one to the end."""
    begun = None
    for number, batch in enumerate(batches):
        begun = begun or (number, time.perf_counter()) if number else None
        yield batch
    first, start = begun
    print(f"WALL {(time.perf_counter() - start) / (number + 1 - first) * 1e3:.3f} ms/step", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # else the threads of the other rank's group may abort it as it ends
        torch.distributed.destroy_process_group()
