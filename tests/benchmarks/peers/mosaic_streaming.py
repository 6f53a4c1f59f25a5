"""MosaicML Streaming: a pool of processes, each with an MDSWriter, then merge_index ("Parallel dataset conversion")."""

from __future__ import annotations

from multiprocessing import Pool

import numpy as np
import pyarrow.parquet as pq
from common import Clock, half, job, report
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import merge_index
from tokenizers import Tokenizer

BATCH = 1000


def convert(work: tuple[list[str], str, int, str]) -> None:
    files, location, eos_id, out = work
    tokenizer = Tokenizer.from_file(location)
    with MDSWriter(out=out, columns={"tokens": "ndarray:uint32"}) as writer:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(BATCH, columns=["text"]):
                texts = batch.column(0).to_pylist()
                for encoded in tokenizer.encode_batch(texts, add_special_tokens=False):
                    writer.write({"tokens": np.array([*encoded.ids, eos_id], np.uint32)})


def main() -> None:
    given, clock = job(), Clock()
    out = f"{given.out}/tokens"
    with clock.work():
        shares = half(given.texts, given.processes)
        work = [(share, given.tokenizer, given.eos_id, f"{out}/{n:05}") for n, share in enumerate(shares)]
        with Pool(given.processes) as pool:
            pool.map(convert, work)
        merge_index(out, keep_local=True)
    report(clock, (sample["tokens"] for sample in StreamingDataset(local=out, batch_size=1)))


if __name__ == "__main__":
    main()
