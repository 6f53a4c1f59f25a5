"""A shuffle buffer is filled anew at the begin of each short epoch, before its first batch."""

import random

import torch
from small import SLOW, VOCABULARY, build, update, watched
from torch.utils.data import DataLoader, IterableDataset

ROWS, EPOCHS = 160, 10
SIZE = 5000 if SLOW else 20  # rows that are decoded before the first one is handed out


def decode(number):
    text = " ".join(str(number * place % VOCABULARY) for place in range(400))
    return [int(word) for word in text.split()][:32]


class Shuffled(IterableDataset):
    def __iter__(self):
        values = random.Random(0)
        kept = [decode(number) for number in range(SIZE)]
        for number in range(SIZE, SIZE + ROWS):
            place = values.randrange(SIZE)
            row, kept[place] = kept[place], decode(number)
            yield row


def batches():
    loader = DataLoader(Shuffled(), batch_size=8, collate_fn=torch.tensor)
    for _ in range(EPOCHS):
        yield from loader


model, optimizer = build()
for ids in watched(batches()):
    update(model, optimizer, ids)
