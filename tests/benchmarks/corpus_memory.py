"""Reads corpora that are too large to hold, in every format, and prints the peak memory and the speed of each.

python -m tests.benchmarks.corpus_memory [--megabytes 400]: a corpus of ordinary documents, one with a document of
200 MB, and a million empty ones. Each is checked (as a run does) and streamed in a process of its own, whose peak
resident memory is printed beside that of a process which only imports what reading needs, and its processor seconds.
Pages of a mapped Arrow file count as resident; the kernel takes them back when it needs them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

MB = 10**6
HUGE_BYTES = 200 * MB
EMPTY = 1_000_000
PARAGRAPH = "The quick brown fox jumps over the lazy dog, and étude 漢字 follows. " * 30


def batches(case: str, megabytes: int) -> Iterator[list[str]]:
    """The documents of a case, some at a time."""
    if case == "ordinary":
        each = [f"{number} {PARAGRAPH}" for number in range(1000)]
        for _ in range(megabytes * MB // sum(len(text.encode()) for text in each)):
            yield each
    elif case == "200 MB document":
        yield ["first", "0123456789abcde " * (HUGE_BYTES // 16), "last"]
    else:
        for _ in range(EMPTY // 1000):
            yield [""] * 1000
        yield ["one"]


def write(path: Path, format: str, case: str, megabytes: int) -> None:
    import json

    if format.startswith("jsonl"):
        compression = "gzip" if format.endswith("gz") else "zstd" if format.endswith("zst") else None
        with pa.output_stream(str(path), compression=compression) as stream:
            for texts in batches(case, megabytes):
                stream.write("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    elif format == "text":  # a document a line
        with path.open("w") as file:
            for texts in batches(case, megabytes):
                file.writelines(f"{text}\n" for text in texts)
    else:
        schema = pa.schema([("text", pa.string())])
        with pq.ParquetWriter(path, schema) if format == "parquet" else ipc.new_file(path, schema) as writer:
            for texts in batches(case, megabytes):
                writer.write_batch(pa.record_batch([pa.array(texts)], schema=schema))


def read(path: str) -> None:
    """In a process of its own: check, stream, and print what it took."""
    from trainer.config import CorpusConfig
    from trainer.data.corpus import iter_texts, prepare_corpus

    documents = characters = 0
    begun_s = time.process_time()
    if path:
        corpus = prepare_corpus(
            CorpusConfig.model_validate({"path": path, "split": "line" if path.endswith(".txt") else "file"})
        )
        checked_s = time.process_time()
        for texts in iter_texts(corpus):
            documents += len(texts)
            characters += sum(map(len, texts))
        streamed_s = time.process_time()
        print(documents, characters, checked_s - begun_s, streamed_s - checked_s, end=" ")
    else:
        import numpy
        import pyarrow.json

        assert numpy
        assert pyarrow.json
        print(0, 0, 0, 0, end=" ")
    print(peak_bytes())


def peak_bytes() -> int:
    """Of this process' resident memory since it was started (``ru_maxrss`` may be its parent's)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def child(path: str, cache: str) -> list[float]:
    command = [sys.executable, "-m", "tests.benchmarks.corpus_memory", "--read", path]
    environment = {"HARNESS_CACHE": cache, "PYTHONPATH": ".", "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=True)
    return [float(value) for value in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400, help="of the ordinary corpus (default: %(default)s)")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        read(arguments.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        cache = f"{folder}/cache"
        base = child("", cache)[-1]
        print(f"imports alone: {base / MB:.0f} MB")
        print(
            f"{'case':18} {'format':10} {'documents':>10} {'file MB':>8} {'peak MB':>8} {'check s':>8} {'stream s':>9}"
        )
        for case in ("ordinary", "200 MB document", "empty documents"):
            for format in ("parquet", "jsonl", "jsonl.gz", "jsonl.zst", "text", "arrow"):
                path = Path(folder) / f"data.{'txt' if format == 'text' else format}"
                write(path, format, case, arguments.megabytes)
                documents, _, check_s, stream_s, peak = child(str(path), cache)
                size = path.stat().st_size
                print(
                    f"{case:18} {format:10} {documents:10,.0f} {size / MB:8.1f} {peak / MB:8.0f} {check_s:8.2f} "
                    f"{stream_s:9.2f}",
                    flush=True,
                )
                path.unlink()


if __name__ == "__main__":
    main()
