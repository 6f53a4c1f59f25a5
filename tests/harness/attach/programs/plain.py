"""A training loop as anyone writes it: torch's DataLoader, a small network, AdamW. It knows nothing of the harness."""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

p = argparse.ArgumentParser()
p.add_argument("--workers", type=int, default=0)
p.add_argument("--steps", type=int, default=60)
p.add_argument("--read-ms", type=float, default=0)
p.add_argument("--collate-ms", type=float, default=0)
p.add_argument("--compute-ms", type=float, default=0)
p.add_argument("--tokenize-words", type=int, default=0, help="in the loop itself, of each batch")
p.add_argument("--accumulation", type=int, default=1)
p.add_argument("--evaluate-every", type=int, default=0)
p.add_argument("--iterable", action="store_true")
p.add_argument("--persistent", action="store_true")
p.add_argument("--epoch", type=int, default=1000, help="batches in an epoch")
p.add_argument("--again", type=int, default=1, help="how often each batch comes")
p.add_argument("--fail-at", type=int, default=-1)
p.add_argument("--kill-at", type=int, default=-1)
args = p.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
BATCH = 4


def sample(i):
    if args.read_ms:
        time.sleep(args.read_ms / 1000 / BATCH)
    g = torch.Generator().manual_seed(i // (BATCH * args.again) * BATCH + i % BATCH)
    return torch.randn(16, generator=g), torch.randint(0, 4, (1,), generator=g)[0]


class Mapped(Dataset):
    def __len__(self):
        return BATCH * args.epoch

    def __getitem__(self, i):
        return sample(i)


class Streamed(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, BATCH * args.epoch, stride):
            yield sample(i)


def collate(samples):
    if args.collate_ms:
        time.sleep(args.collate_ms / 1000)
    xs, ys = zip(*samples)
    return torch.stack(xs), torch.stack(ys)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def forward(self, x):
        if args.compute_ms:
            time.sleep(args.compute_ms / 1000)
        return self.layers(x)


if args.tokenize_words:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(
    Streamed() if args.iterable else Mapped(),
    batch_size=BATCH,
    num_workers=args.workers,
    collate_fn=collate,
    persistent_workers=args.persistent and args.workers > 0,
)
held_out = DataLoader(Mapped(), batch_size=BATCH, collate_fn=collate)

step = 0
while step < args.steps:
    for number, (x, y) in enumerate(loader):
        if args.tokenize_words:
            tokenizer.encode("a b " * args.tokenize_words)
        loss = torch.nn.functional.cross_entropy(model(x), y) / args.accumulation
        loss.backward()
        if (number + 1) % args.accumulation:
            continue
        optimizer.step()
        optimizer.zero_grad()
        print(f"{step} {loss.item()!r}")
        step += 1
        if step == args.fail_at:
            raise SystemExit(7)
        if step == args.kill_at:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        if args.evaluate_every and step % args.evaluate_every == 0:
            model.eval()
            with torch.no_grad():
                for k, (x, y) in enumerate(held_out):
                    model(x)
                    if k == 3:
                        break
            model.train()
        if step >= args.steps:
            break
