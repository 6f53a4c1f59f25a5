"""Encodes texts as their batch is made, or reads what was encoded before."""

import random
from functools import cache, partial

import torch
import turns
from documents import Repeated
from small_gpt import VOCABULARY, build, next_token_loss, shape
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader

SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "an", "el", "ir")]


def texts(number, words):
    """Return texts of made-up words, some of which are frequent."""
    chance = random.Random(0)
    known = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 5))) for _ in range(20_000)]
    shares = [1 / (rank + 3) for rank in range(len(known))]
    return [" ".join(chance.choices(known, shares, k=words)) for _ in range(number)]


@cache
def prepared(number, words):
    """Return texts, and a tokenizer that is trained on them."""
    corpus = texts(number, words)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=VOCABULARY // 2, show_progress=False))
    return corpus, tokenizer


def encode(tokenizer, length, text):
    """Encode the whole text, and keep its first ``length`` tokens."""
    return tokenizer.encode(text).ids[:length]


def collate(tokenizer, length, rows):
    return torch.tensor([encode(tokenizer, length, text) for text in rows])


def train(slow, device):
    rows, length = shape(device, 16, 512)
    corpus, tokenizer = prepared(256 if device.type == "cuda" else 8, 2 * length)
    served, made_by = corpus, partial(collate, tokenizer, length)
    if not slow:
        served, made_by = [encode(tokenizer, length, text) for text in corpus], torch.tensor
    model, optimizer = build(device, layers=8, width=512)
    for ids in DataLoader(Repeated(served), rows, collate_fn=made_by, pin_memory=device.type == "cuda"):
        ids = ids.to(device, non_blocking=True)
        loss = next_token_loss(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


if __name__ == "__main__":
    turns.main(train)
