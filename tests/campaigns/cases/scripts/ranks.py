"""DistributedDataParallel over gloo, with a DistributedSampler; for torchrun."""

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

distributed.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
ids = torch.randint(0, 500, (8000, 64), generator=torch.Generator().manual_seed(1))
data = TensorDataset(ids)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Embedding(500, 128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 500))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
sampler.set_epoch(0)
for number, (batch,) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number % 50 == 0 and distributed.get_rank() == 0:
        print(f"step {number}: loss {loss.item():.3f}", flush=True)
distributed.destroy_process_group()
