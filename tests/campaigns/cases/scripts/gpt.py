"""A loop in the style of nanoGPT's train.py: memmap, get_batch, accumulation, clipping, evaluation, checkpoint, log."""

import math
import tempfile
import time

import numpy as np
import torch
from torch import nn

BLOCK, BATCH, MICRO_STEPS, STEPS, VOCABULARY = 64, 8, 2, 250, 256
folder = tempfile.TemporaryDirectory()
for split, size in (("train", 200_000), ("val", 20_000)):
    np.random.default_rng(0).integers(0, VOCABULARY, size).astype(np.uint16).tofile(f"{folder.name}/{split}.bin")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (
            one.view(rows, length, self.heads, -1).transpose(1, 2) for one in self.qkv(self.norm_1(x)).split(width, 2)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, width=64, depth=3, heads=4):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(BLOCK, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(split):
    data = np.memmap(f"{folder.name}/{split}.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - BLOCK, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in starts])
    return x, y


@torch.no_grad()
def estimate_loss():
    model.eval()
    found = {split: sum(model(*get_batch(split))[1].item() for _ in range(5)) / 5 for split in ("train", "val")}
    model.train()
    return found


torch.manual_seed(1337)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
X, Y = get_batch("train")
t0 = time.time()
for iter_num in range(STEPS):
    lr = 1e-3 * 0.5 * (1 + math.cos(math.pi * iter_num / STEPS))
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % 100 == 0 and iter_num:
        print(f"step {iter_num}: {estimate_loss()}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder.name}/ckpt.pt")
    for _ in range(MICRO_STEPS):
        logits, loss = model(X, Y)
        loss = loss / MICRO_STEPS
        X, Y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    if iter_num % 10 == 0:
        print(f"iter {iter_num}: loss {loss.item() * MICRO_STEPS:.4f}, time {(t1 - t0) * 1000:.2f}ms", flush=True)
    t0 = t1
