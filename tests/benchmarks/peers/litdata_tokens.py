"""LitData: optimize(fn, inputs=files, num_workers=N, item_loader=TokensLoader()) ("LLM Pre-training")."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from common import Clock, job, report
from litdata import TokensLoader, optimize
from tokenizers import Tokenizer

BATCH = 1000


def tokenize(file: str, location: str, eos_id: int) -> Iterator[torch.Tensor]:
    tokenizer = Tokenizer.from_file(location)
    for batch in pq.ParquetFile(file).iter_batches(BATCH, columns=["text"]):
        for encoded in tokenizer.encode_batch(batch.column(0).to_pylist(), add_special_tokens=False):
            yield torch.tensor([*encoded.ids, eos_id], dtype=torch.int32)


def main() -> None:
    given, clock = job(), Clock()
    out = f"{given.out}/tokens"
    with clock.work():
        optimize(
            fn=partial(tokenize, location=given.tokenizer, eos_id=given.eos_id),
            inputs=given.texts,
            output_dir=out,
            num_workers=given.processes,
            chunk_bytes="64MB",
            item_loader=TokensLoader(),
        )
    report(clock, map(tokens_of, sorted(Path(out).glob("*.bin"))))


def tokens_of(chunk: Path) -> np.ndarray:
    """A chunk: the number of its items, where each begins, and the items (its own loader reads whole blocks only)."""
    content = chunk.read_bytes()
    items = int(np.frombuffer(content, np.uint32, 1)[0])
    begins = np.frombuffer(content, np.uint32, items + 1, 4)
    return np.frombuffer(content[begins[0] : begins[-1]], np.int32)


if __name__ == "__main__":
    main()
