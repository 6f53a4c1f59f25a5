"""A resumed training that makes the batches it skips (huggingface/transformers#21934)."""

import time

from small import SLOW, build, tokens, update
from torch.utils.data import DataLoader, Dataset, Subset


class Store(Dataset):
    def __len__(self):
        return 8 * 400

    def __getitem__(self, index):
        time.sleep(0.001)
        return tokens(1)[0]


def resumed(skipped):
    if not SLOW:
        yield from DataLoader(Subset(Store(), range(8 * skipped, 8 * 400)), batch_size=8)
        return
    for number, batch in enumerate(DataLoader(Store(), batch_size=8)):
        if number >= skipped:
            yield batch


begun = time.perf_counter()
model, optimizer = build()
for steps, ids in enumerate(resumed(320), 1):
    update(model, optimizer, ids)
print(f"WALL {(time.perf_counter() - begun) / steps * 1e3:.3f} ms/step", flush=True)
