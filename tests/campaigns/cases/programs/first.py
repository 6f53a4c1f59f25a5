"""A first batch that takes seconds, as it reads an index (pytorch/pytorch#13246 has others of this kind)."""

import time

from small import SLOW, build, tokens, update
from torch.utils.data import DataLoader, Dataset


class Indexed(Dataset):
    index = None

    def __len__(self):
        return 8 * 80

    def __getitem__(self, index):
        if self.index is None:
            self.index = self.build_index()
        return self.index[index % len(self.index)]

    def build_index(self):
        if SLOW:
            time.sleep(3)
        return tokens(64)


begun = time.perf_counter()
model, optimizer = build()
for steps, ids in enumerate(DataLoader(Indexed(), batch_size=8), 1):
    update(model, optimizer, ids)
print(f"WALL {(time.perf_counter() - begun) / steps * 1e3:.3f} ms/step", flush=True)
