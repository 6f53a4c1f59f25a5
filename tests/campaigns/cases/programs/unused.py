"""find_unused_parameters=True where all parameters are used: DDP walks the graph in each step."""

from small import SLOW, build_rank, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build_rank(width=32, depth=60, find_unused_parameters=SLOW)
for ids in watched(DataLoader(tokens(200), batch_size=1)):
    update(model, optimizer, ids)
