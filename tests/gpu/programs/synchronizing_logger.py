"""Logs how long steps take."""

import time

import torch
import turns
from documents import document_loader
from small_gpt import build, next_token_loss, shape

SELDOM = 50


class StepTimes:
    def __init__(self, device, every):
        self.on_gpu, self.every, self.steps, self.ended = device.type == "cuda", every, 0, []

    def log(self):
        self.steps += 1
        if self.steps % self.every == 0:
            if self.on_gpu:
                torch.cuda.synchronize()
            self.ended.append(time.perf_counter())


def train(slow, device):
    model, optimizer = build(device, layers=12, width=512)
    times = StepTimes(device, 1 if slow else SELDOM)
    for ids in document_loader(device, *shape(device, 8, 512)):
        ids = ids.to(device, non_blocking=True)
        loss = next_token_loss(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.log()
        yield loss


if __name__ == "__main__":
    turns.main(train)
