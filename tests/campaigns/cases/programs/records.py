"""Each row is a long JSON record, parsed as it is read, of which one short field is used."""

import json

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader, Dataset

rows = tokens(160 * 8).tolist()
extra = [{"name": f"field {n}", "values": list(range(50))} for n in range(200 if SLOW else 1)]
text = json.dumps(extra)
lines = [f'{{"ids": {row}, "extra": {text}}}' for row in rows]


class Records(Dataset):
    def __len__(self):
        return len(lines)

    def __getitem__(self, index):
        return torch.tensor(json.loads(lines[index])["ids"])


model, optimizer = build()
for ids in watched(DataLoader(Records(), batch_size=8)):
    update(model, optimizer, ids)
