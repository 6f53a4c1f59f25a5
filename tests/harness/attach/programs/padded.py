"""Trains on rows of 32 positions, by name: how a batch shows that 3 of 4 positions are padding, or that none is.

The batches of "joined" programs have other rows than the dataset.

Each step prints its number and its loss. Half of the rows have 12 tokens, the others have 4.
"""

import sys

import torch
from torch.utils.data import DataLoader

KIND = sys.argv[1]
STEPS, ROWS, WIDTH = 24, 4, 32
torch.manual_seed(0)
torch.set_num_threads(1)
lengths = torch.tensor([12, 4] * (STEPS * ROWS // 2))
ids = torch.randint(1, 50, (len(lengths), WIDTH))
is_token = torch.arange(WIDTH)[None] < lengths[:, None]
if KIND in ("prompts", "full"):
    is_token[:] = True
ids[~is_token] = 0
labels = ids.masked_fill(~is_token, -100)
if KIND == "prompts":
    labels[:, :24] = -100


def batch(rows):
    found = {"input_ids": ids[rows], "attention_mask": is_token[rows].long(), "labels": labels[rows]}
    match KIND:
        case "left":
            return {name: one.flip(1) for name, one in found.items() if name != "attention_mask"}
        case "labels" | "prompts":
            del found["attention_mask"]
        case "ids":
            return {"input_ids": found["input_ids"]}
        case "joined" | "joined-workers":
            return {"input_ids": found["input_ids"].reshape(-1, 8)}
        case "tuple":
            return tuple(found.values())
    return found


model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
workers = 2 * (KIND == "joined-workers")
for step, made in enumerate(DataLoader(range(len(ids)), batch_size=ROWS, collate_fn=batch, num_workers=workers)):
    first = made[0] if isinstance(made, tuple) else made["input_ids"]
    loss = torch.nn.functional.cross_entropy(model(first).flatten(0, 1), first.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item()!r}")
