"""find_unused_parameters=True where all parameters are used: DDP walks the graph in each step."""

import torch
from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

torch.distributed.init_process_group("gloo")
model, optimizer = build(width=32, depth=60)
model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=SLOW)
for ids in watched(DataLoader(tokens(200), batch_size=1)):
    update(model, optimizer, ids)
