"""As nanoGPT's data/openwebtext/prepare.py: datasets.map, a document at a time, then a memory map written in pieces.

With the same vocabulary as the others: `tokenizers` in place of tiktoken's GPT-2.
"""

from __future__ import annotations

import numpy as np
from common import Clock, job, report
from datasets import load_dataset
from tokenizers import Tokenizer

MOST_BATCHES = 1024


def main() -> None:
    given, clock = job(), Clock()
    place = f"{given.out}/train.bin"
    with clock.work():
        tokenizer = Tokenizer.from_file(given.tokenizer)
        kind = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32

        def process(example: dict) -> dict:
            ids = tokenizer.encode(example["text"], add_special_tokens=False).ids
            ids.append(given.eos_id)
            return {"ids": ids, "len": len(ids)}

        texts = load_dataset("parquet", data_files=given.texts, split="train", cache_dir=f"{given.out}/cache")
        tokens = texts.map(process, remove_columns=["text"], desc="tokenizing the splits", num_proc=given.processes)
        written = np.memmap(place, dtype=kind, mode="w+", shape=(int(np.sum(tokens["len"], dtype=np.uint64)),))
        batches = min(MOST_BATCHES, len(tokens))
        at = 0
        for number in range(batches):
            batch = tokens.shard(num_shards=batches, index=number, contiguous=True).with_format("numpy")
            ids = np.concatenate(batch["ids"])
            written[at : at + len(ids)] = ids
            at += len(ids)
        written.flush()
    report(clock, [np.fromfile(place, kind)])


if __name__ == "__main__":
    main()
