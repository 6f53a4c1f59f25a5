"""Writes attention by hand, with all its scores in memory, or calls torch's, which is flash attention on a GPU."""

import math

import torch
import turns
from documents import Repeated, random_ids
from small_gpt import LONGEST, build, causal_attention, next_token_loss, shape
from torch.utils.data import DataLoader


class WrittenAttention(torch.nn.Module):
    def __init__(self, length):
        super().__init__()
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, query, key, value):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(self.later, float("-inf"))
        return scores.softmax(-1) @ value


def train(slow, device):
    rows, length = shape(device, 4, LONGEST)
    attention = WrittenAttention(length) if slow else causal_attention
    model, optimizer = build(device, layers=4, width=512, attention=attention)
    for ids in DataLoader(Repeated(random_ids(256, length)), batch_size=rows, pin_memory=device.type == "cuda"):
        ids = ids.to(device, non_blocking=True)
        loss = next_token_loss(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


if __name__ == "__main__":
    turns.main(train)
