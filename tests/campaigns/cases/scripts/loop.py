"""A plain loop over a DataLoader of token windows; the words say which of a loop's usual features it has."""

import argparse
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

LENGTH, VOCABULARY, WIDTH = 64, 500, 128
parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
for feature in ("iterable", "amp", "compile", "lora", "schedule"):
    parser.add_argument(f"--{feature}", action="store_true")
options = parser.parse_args()
corpus = torch.randint(0, VOCABULARY, (400_000,), generator=torch.Generator().manual_seed(1))


class Windows(Dataset):
    def __len__(self):
        return len(corpus) // LENGTH

    def __getitem__(self, index):
        return corpus[index * LENGTH : (index + 1) * LENGTH]


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, len(corpus) // LENGTH, stride):
            yield corpus[index * LENGTH : (index + 1) * LENGTH]


class Adapted(nn.Module):
    """A frozen linear layer plus a product of two small matrices, as LoRA has it."""

    def __init__(self, layer, rank=8):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def main():
    torch.manual_seed(0)
    adapt = Adapted if options.lora else lambda layer: layer
    blocks = [
        nn.Sequential(adapt(nn.Linear(WIDTH, 4 * WIDTH)), nn.GELU(), adapt(nn.Linear(4 * WIDTH, WIDTH)))
        for _ in range(2)
    ]
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY))
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    if options.compile:
        model = torch.compile(model, backend="eager")
    data = Stream() if options.iterable else Windows()
    loader = DataLoader(data, batch_size=16, num_workers=options.workers, shuffle=None if options.iterable else True)
    for number, ids in enumerate(loader):
        with torch.autocast("cpu", torch.bfloat16) if options.amp else contextlib.nullcontext():
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        (loss / options.accumulate).backward()
        if number % options.accumulate == options.accumulate - 1:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if options.schedule:
                schedule.step()
        if number % 50 == 0:
            print(f"step {number}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
