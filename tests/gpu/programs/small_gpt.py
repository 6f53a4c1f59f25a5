"""A small GPT, and what the training scripts of this folder share. On a CPU it shrinks to a size that tests can run."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, LONGEST = 8192, 2048


def causal_attention(query, key, value):
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class Block(nn.Module):
    def __init__(self, width, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(self.attention(query, key, value).transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """Gives logits; its matrix products are in bf16 on a GPU."""

    def __init__(self, layers, width, attention=causal_attention, vocabulary=VOCABULARY):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList([Block(width, width // 64 or 1, attention) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=ids.is_cuda):
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))


def build(device, layers, width, **options):
    """Return the model on ``device``, and its optimizer."""
    torch.manual_seed(0)
    if device.type != "cuda":
        torch.set_num_threads(1)
        layers, width = 1, 32
    model = GPT(layers, width, **options)
    model = model.to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def shape(device, rows, length):
    """Return the batch size and the sequence length."""
    return (rows, length) if device.type == "cuda" else (min(rows, 2), length // 16)


def next_token_loss(logits, ids):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
