"""A tokenizer that was used before the fork: its threads are off in the only loader worker, which cannot keep up."""

import random

import torch
from small import SLOW, VOCABULARY, build, update, watched
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader

words = {f"w{n}": n for n in range(VOCABULARY)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
values = random.Random(0)
texts = [" ".join(values.choices(list(words), k=3000 if SLOW else 100)) for _ in range(150 * 8)]
print(len(tokenizer.encode_batch(texts[:8])), "texts before the fork")


def encode(rows):
    return torch.tensor([row.ids[:32] for row in tokenizer.encode_batch(rows)])


model, optimizer = build()
for ids in watched(DataLoader(texts, batch_size=8, num_workers=1, collate_fn=encode)):
    update(model, optimizer, ids)
