"""Peak memory of ``harness data pretokenize`` over a large synthetic corpus.

``python -m tests.benchmarks.pretokenize_memory --gigabytes 5``. The corpus is one parquet file of N GB of text with row
groups of 50 MB, beside which a document of ``--longest`` MB may stand; the command runs in a process of its own, whose
largest resident set (getrusage) is printed. It ends with 1 where that is 1 GB or more.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.config import CorpusConfig, TokenizerConfig, TrainTokenizer

ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 1e9
ROW_GROUP_BYTES = 50e6
SYLLABLES = ("ka", "to", "mi", "ren", "sol", "ver", "ing", "th", "qu", "on", "est", "ar", "é", "字")


def text_bytes(path: Path) -> int:
    """Of all documents."""
    batches = pq.ParquetFile(path).iter_batches(1000, use_threads=False)
    return sum(pc.sum(pc.binary_length(batch.column(0))).as_py() for batch in batches)


def write_corpus(path: Path, gigabytes: float, longest_mb: float) -> None:
    """Write it row group by row group."""
    chance = random.Random(0)
    words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 5))) for _ in range(60_000)]
    written = 0
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())]), compression="snappy") as file:

        def write(texts: list[str]) -> None:
            nonlocal written
            file.write_table(pa.table({"text": texts}))
            written += sum(len(text.encode()) for text in texts)

        if longest_mb:
            text = " ".join(chance.choices(words, k=100_000))
            write([(text + "\n") * int(longest_mb * 1e6 / len(text.encode()) + 1)])
        while written < gigabytes * 1e9:
            # Words are drawn anew for each row group: what an engine remembers of them helps it no more than with text.
            lines = [" ".join(chance.choices(words, k=40)) for _ in range(20_000)]
            texts, size = [], 0
            while size < ROW_GROUP_BYTES:
                texts.append("\n".join(chance.choices(lines, k=chance.randint(1, 40))))
                size += 250 * texts[-1].count("\n") + 250
            write(texts)


def tokenizer_file(corpus: Path) -> str:
    """A tokenizer of 4,096 ids, trained on the corpus' first documents."""
    from trainer.data.corpus import prepare_corpus
    from trainer.data.tokenizers import prepare_tokenizer

    found = prepare_corpus(CorpusConfig(path=str(corpus), documents=2000))
    return prepare_tokenizer(TokenizerConfig(train=TrainTokenizer(vocab_size=4096)), found).location


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gigabytes", type=float, default=5, metavar="N", help="of text (default: %(default)s)")
    options.add_argument("--longest", type=float, default=0, metavar="MB", help="a document of that size, first")
    options.add_argument("--format", default="flat", choices=("flat", "token-list", "padded"))
    options.add_argument("--tokenizer-engine", metavar="NAME", help="as of harness data pretokenize")
    options.add_argument("--workers", metavar="N")
    options.add_argument("--corpus", metavar="FILE", help="keep the corpus there, or take what is there already")
    options.add_argument(
        "--dir", metavar="DIR", help="where the corpus and the tokens go for a while (default: TMPDIR)"
    )
    arguments = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pretokenize-memory-", dir=arguments.dir))
    os.environ["HARNESS_CACHE"] = str(folder / "cache")
    try:
        corpus = Path(arguments.corpus) if arguments.corpus else folder / "corpus.parquet"
        if not corpus.exists():
            write_corpus(corpus, arguments.gigabytes, arguments.longest)
        size = text_bytes(corpus)
        print(f"corpus: {size / 1e9:.2f} GB of text, {pq.read_metadata(corpus).num_rows:,} documents", flush=True)
        words = ["--corpus", str(corpus), "--tokenizer", tokenizer_file(corpus), "--out", str(folder / "out")]
        for name in ("tokenizer_engine", "workers"):
            if getattr(arguments, name) is not None:
                words += [f"--{name.replace('_', '-')}", getattr(arguments, name)]
        command = [sys.executable, "-m", "harness", "data", "pretokenize", *words, "--format", arguments.format]
        begun_s = time.monotonic()
        pid = os.posix_spawn(sys.executable, command, os.environ | {"PYTHONPATH": str(ROOT)})
        _, status, used = os.wait4(pid, 0)
        seconds = time.monotonic() - begun_s
        if code := os.waitstatus_to_exitcode(status):
            print(f"the command ended with {code}")
            return 1
        peak = used.ru_maxrss * 1024
        speed = f"{seconds:,.0f} s with the check of the corpus, {size / 1e6 / seconds:.1f} MB/s"
        print(f"peak memory {peak / 1e6:,.0f} MB; {speed}")
        return 1 if peak >= LIMIT_BYTES else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
