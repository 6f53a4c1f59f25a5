"""A training loop on a CUDA device as anyone writes it: ``attached_loop STEPS DATA_MS:WORKERS ...``, one per case."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

FIRST = 20  # step from which on time counts


class Text(Dataset):
    def __init__(self, rows: int, data_ms: float) -> None:
        self.rows, self.data_ms = rows, data_ms

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        until = time.perf_counter() + self.data_ms / 1e3
        while time.perf_counter() < until:
            pass
        return torch.full((256,), row % 100, dtype=torch.long)


def train(steps: int, data_ms: float, workers: int) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2048, 2048) for _ in range(24)]
    model = torch.nn.Sequential(torch.nn.Embedding(100, 2048), *layers, torch.nn.Linear(2048, 100)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loader = DataLoader(Text(8 * steps, data_ms / 8), batch_size=8, num_workers=workers, pin_memory=True)
    begun = 0.0
    for step, ids in enumerate(loader):
        if step == FIRST:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        ids = ids.cuda(non_blocking=True)
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item().hex())
    torch.cuda.synchronize()
    print("milliseconds a step", (time.perf_counter() - begun) / (steps - FIRST) * 1e3)


if __name__ == "__main__":
    for case in sys.argv[2:]:
        data, _, loaders = case.partition(":")
        print("case", case)
        train(int(sys.argv[1]), float(data), int(loaders))
