"""Text is tokenized anew in every epoch, in the collate function of the main process."""

import random

import torch
from small import SLOW, VOCABULARY, build, update, watched
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader

words = {f"w{n}": n for n in range(VOCABULARY)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
values = random.Random(0)
texts = [" ".join(values.choices(list(words), k=1500)) for _ in range(200 * 8)]


def encode(rows):
    return torch.tensor([tokenizer.encode(row).ids[:32] for row in rows])


data = texts if SLOW else list(encode([text[:200] for text in texts]))
model, optimizer = build()
for ids in watched(DataLoader(data, batch_size=8, collate_fn=encode if SLOW else None)):
    update(model, optimizer, ids)
