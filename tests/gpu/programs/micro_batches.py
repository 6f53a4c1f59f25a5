"""Accumulates the gradients of eight small batches, or takes the same rows at once: as many tokens, fewer kernels."""

import turns
from documents import Repeated, random_ids
from small_gpt import build, next_token_loss, shape
from torch.utils.data import DataLoader

ROWS, LENGTH = 16, 256


def train(slow, device):
    model, optimizer = build(device, layers=6, width=384)
    _, length = shape(device, ROWS, LENGTH)
    parts = 8 if slow else 1
    loader = DataLoader(Repeated(random_ids(256, length)), batch_size=ROWS // parts, pin_memory=device.type == "cuda")
    for number, ids in enumerate(loader, 1):
        ids = ids.to(device, non_blocking=True)
        loss = next_token_loss(model(ids), ids) / parts
        loss.backward()
        if number % parts == 0:
            optimizer.step()
            optimizer.zero_grad()
            yield loss


if __name__ == "__main__":
    turns.main(train)
