"""A loop in the style of accelerate's nlp_example.py: prepare, accumulate, a schedule, an evaluation per epoch."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
ids = torch.randint(0, 500, (2000, 64))
labels = torch.randint(0, 2, (2000,))
model = torch.nn.Sequential(
    torch.nn.Embedding(500, 128), torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Flatten(),
    torch.nn.Linear(512 * 64, 2),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train, held = (
    DataLoader(TensorDataset(ids[part], labels[part]), 16, shuffle=True) for part in (slice(1600), slice(1600, None))
)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=500)
model, optimizer, train, held, schedule = accelerator.prepare(model, optimizer, train, held, schedule)
for epoch in range(5):
    model.train()
    for x, y in train:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    right = 0
    for x, y in held:
        with torch.no_grad():
            right += (accelerator.gather_for_metrics(model(x).argmax(-1)) == y).sum().item()
    accelerator.print(f"epoch {epoch}: {right / len(held.dataset):.3f}")
