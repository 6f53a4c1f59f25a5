"""Trains on rows of 32 positions of which 3 of 4 are padding: half of the rows have 12 tokens, the others have 4.

The batches of "joined" programs have other rows than the dataset. Each step prints its number and its loss.
"""

import sys

import torch
from torch.utils.data import DataLoader

KIND = sys.argv[1]
STEPS, ROWS, WIDTH = 24, 4, 32
torch.manual_seed(0)
torch.set_num_threads(1)
lengths = torch.tensor([12, 4] * (STEPS * ROWS // 2))
is_token = torch.arange(WIDTH)[None] < lengths[:, None]
ids = torch.randint(1, 50, (len(lengths), WIDTH)) * is_token
labels = ids.masked_fill(~is_token, -100)


def batch(rows):
    if KIND != "mask":
        return {"input_ids": ids[rows].reshape(-1, 8)}
    return {"input_ids": ids[rows], "attention_mask": is_token[rows].long(), "labels": labels[rows]}


model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
workers = 2 * (KIND == "joined-workers")
for step, made in enumerate(DataLoader(range(len(ids)), batch_size=ROWS, collate_fn=batch, num_workers=workers)):
    first = made["input_ids"]
    loss = torch.nn.functional.cross_entropy(model(first).flatten(0, 1), first.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item()!r}")
