"""Keeps the loss of every step as a number."""

import turns
from documents import document_loader
from small_gpt import build, next_token_loss, shape
from torch.nn.utils import clip_grad_norm_


def train(slow, device):
    model, optimizer = build(device, layers=12, width=512)
    losses = []
    for ids in document_loader(device, *shape(device, 8, 512)):
        ids = ids.to(device, non_blocking=True)
        loss = next_token_loss(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item() if slow else loss.detach())
        yield losses[-1]


if __name__ == "__main__":
    turns.main(train)
