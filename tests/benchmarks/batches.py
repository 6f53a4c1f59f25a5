"""How fast each data path makes batches of 8 x 1024, side by side, and what handing them over costs.

    python -m tests.benchmarks.batches [--rounds 9] [--copies] [--hand-over]

A round runs each path for a fixed number of batches, in turns, so that a neighbour's load meets all of them alike.
Printed are medians over the rounds: by the clock, by the CPU time of the thread that makes the batches (which a busy
machine disturbs less; engines that encode in threads of their own have no such figure), and the ratio to nanoGPT's
get_batch within each round. The corpus is the built-in one, or --parquet FILE.

naive         text-padded, scalar, a tokenizer call per document: the founding study's path
nanoGPT       get_batch as published (train.py of karpathy/nanoGPT, MIT), in our words: a memory map opened for each
              batch, random places, a row at a time widened and stacked, inputs and targets
widening      nothing but uint16 to int64, of one place after the other, into one array: what a batch costs at least
tokens-mmap, tokens-stream, text-stream   this repository's, through open_batches without workers
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any

import numpy as np
import torch

from trainer.config import DataConfig
from trainer.data.formats.flat import TOKENS, token_type
from trainer.data.loader import open_batches
from trainer.data.prepare import Prepared, prepare
from trainer.errors import InputError

ROWS, LENGTH = 8, 1024
ENGINES = ("tokenizers", "tiktoken", "gigatoken", "fastokens")
BASE = "nanoGPT"


def config(**changes: Any) -> DataConfig:
    return DataConfig.model_validate({"batch_size": ROWS, "sequence_length": LENGTH} | changes)


def get_batch(file: Path, dtype: np.dtype[Any], generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """nanoGPT's, on a CPU."""
    data = np.memmap(file, dtype=dtype, mode="r")  # anew for each batch, against a leak, says its source
    places = torch.randint(len(data) - LENGTH, (ROWS,), generator=generator).tolist()
    x = torch.stack([torch.from_numpy(data[at : at + LENGTH].astype(np.int64)) for at in places])
    y = torch.stack([torch.from_numpy(data[at + 1 : at + 1 + LENGTH].astype(np.int64)) for at in places])
    return x, y


def widening(tokens: Any) -> Callable[[], None]:
    wide, at = np.empty(ROWS * LENGTH, dtype=np.int64), 0

    def one() -> None:
        nonlocal at
        wide[:] = tokens[at : at + ROWS * LENGTH]
        at = (at + ROWS * LENGTH) % (len(tokens) - ROWS * LENGTH)

    return one


def paths(corpus: dict[str, Any], opened: list[Any]) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Name, what makes one batch, and how many of them a round takes."""

    def made(name: str, count: int, **changes: Any) -> tuple[str, Callable[[], object], int]:
        asked = config(corpus=corpus, **changes)
        batches = open_batches(asked, prepare(asked), seed=0)
        opened.append(batches)
        next(batches)  # opens the files
        return name, lambda: next(batches), count

    flat = config(corpus=corpus, path="tokens-mmap")
    prepared = prepare(flat)
    assert prepared.pretokenized is not None
    file, dtype = Path(prepared.pretokenized) / TOKENS, token_type(prepared.tokenizer.vocab_size)
    tokens, generator = np.fromfile(file, dtype), torch.Generator().manual_seed(0)
    yield BASE, lambda: get_batch(file, dtype, generator), 60
    yield "widening", widening(tokens), 600
    yield made("naive", 2, path="text-padded", tokenize="per-sample")
    yield made("tokens-padded, scalar", 4, path="tokens-padded")
    yield made("tokens-stream, scalar", 6, path="tokens-stream")
    yield made("tokens-padded, zero-copy", 200, path="tokens-padded", access="zero-copy")
    yield made("tokens-stream, zero-copy", 600, path="tokens-stream", access="zero-copy")
    yield made("tokens-mmap", 600, path="tokens-mmap")
    yield made("tokens-mmap, in order", 600, path="tokens-mmap", shuffle=False)
    yield made("tokens-mmap, computed order", 600, path="tokens-mmap", shuffle="documents")
    yield made("tokens-mmap, windows", 600, path="tokens-mmap", shuffle="windows")
    yield made("tokens-mmap, separated", 600, path="tokens-mmap", documents="separated")
    for engine in ENGINES:
        try:
            version(engine)
            tokenizer = {"train": {}, "engine": engine}
            fast = engine != "tokenizers"
            yield made(
                f"text-stream, {engine}", 60 if fast else 4, path="text-stream", access="zero-copy", tokenizer=tokenizer
            )
            if engine == "gigatoken":
                threads = {"tokenize": "threads", "tokenize_threads": 2}
                name = f"text-stream, {engine}, 2 threads"
                yield made(name, 60, path="text-stream", access="zero-copy", tokenizer=tokenizer, **threads)
        except PackageNotFoundError:
            print(f"{engine} is not installed here", file=sys.stderr)
        except InputError as error:
            print(f"{engine}: {error}", file=sys.stderr)


def timed(make: Callable[[], object], count: int) -> tuple[float, float]:
    """Million tokens a second, by the clock and by this thread's CPU time."""
    wall, cpu = perf_counter_ns(), thread_time_ns()
    for _ in range(count):
        make()
    cpu, wall = thread_time_ns() - cpu, perf_counter_ns() - wall
    tokens = count * ROWS * LENGTH * 1e3
    return tokens / wall, tokens / max(cpu, 1)


def compare(corpus: dict[str, Any], rounds: int) -> None:
    opened: list[Any] = []
    try:
        every = list(paths(corpus, opened))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in every}
        for number in range(rounds + 1):
            for name, make, count in every:
                speed = timed(make, count)
                if number:  # the first one warms up
                    found[name].append(speed)
    finally:
        for batches in opened:
            batches.close()
    print(f"{'':30s}{'Mtok/s':>9s}{'of CPU':>9s}{'/ nanoGPT':>11s}{'of CPU':>9s}{'/ naive':>9s}")
    for name, speeds in found.items():
        wall, cpu = (statistics.median(column) for column in zip(*speeds, strict=True))
        ratios = []
        for other, place in ((BASE, 0), (BASE, 1), ("naive", 0)):
            of_each = zip(speeds, found[other], strict=True)
            ratios.append(statistics.median(one[place] / against[place] for one, against in of_each))
        print(f"{name:30s}{wall:9.2f}{cpu:9.2f}{ratios[0]:11.2f}{ratios[1]:9.2f}{ratios[2]:9.0f}")


def hand_over(corpus: dict[str, Any], rounds: int) -> None:
    """What the main thread pays for a batch of 8 x 2048 that lies ready, and how long one takes that does not."""
    base = config(corpus=corpus, path="tokens-mmap", sequence_length=2048)
    prepared = prepare(base)
    every = {"in process": {}, "ring": {"workers": 1, "transport": "ring"}, "dataloader": {"workers": 1}}
    ready: dict[str, list[float]] = {name: [] for name in every}
    flowing: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(rounds):
        for name, changes in every.items():
            with open_batches(base.model_copy(update=changes), prepared, seed=0) as batches:
                list(islice(batches, 20))
                for _ in range(20):
                    sleep(0.02)
                    start = perf_counter_ns()
                    next(batches)
                    ready[name].append((perf_counter_ns() - start) / 1e6)
                start = perf_counter_ns()
                for _ in range(100):
                    next(batches)
                flowing[name].append((perf_counter_ns() - start) / 1e8)
    print(f"\n{'8 x 2048 of tokens-mmap':30s}{'ms, ready':>11s}{'ms a batch, one after the other':>34s}")
    for name in every:
        print(f"{name:30s}{statistics.median(ready[name]):11.3f}{statistics.median(flowing[name]):34.3f}")
    stages(base, prepared)


def stages(base: DataConfig, prepared: Prepared) -> None:
    """The time of a step, by a stage's cost and the step's own work, which both sleep: cores are no limit."""
    from trainer.config import DataInject
    from trainer.inject import spend

    print(f"\n{'stage ms, step ms':30s}{'in process':>12s}{'ring':>12s}{'dataloader':>12s}")
    for stage_ms in (0.0, 0.2, 1.0, 5.0):
        for step_ms in (1.0, 10.0):
            times = []
            for changes in ({}, {"workers": 1, "transport": "ring"}, {"workers": 1}):
                asked = base.model_copy(update={**changes, "inject": DataInject(pack_ms=stage_ms, how="sleep")})
                with open_batches(asked, prepared, seed=0) as batches:
                    list(islice(batches, 5))
                    start = perf_counter_ns()
                    for _ in range(40):
                        next(batches)
                        spend(step_ms, "sleep")
                    times.append((perf_counter_ns() - start) / 40e6)
            print(f"{f'{stage_ms:g}, {step_ms:g}':30s}" + "".join(f"{one:12.2f}" for one in times))


def copies() -> None:
    """Where one gather is as fast as a copy of each piece (trainer.data.flat_pipeline.MAX_PIECES_OF_A_ROW)."""
    tokens = np.random.default_rng(0).integers(0, 50_000, 20_000_000).astype(np.uint16)
    wide, narrow, at = np.empty(8192, np.int64), np.empty(8192, np.uint16), np.arange(8192)
    print(f"{'pieces':>7s}{'each, us':>10s}{'gather, us':>11s}")
    for pieces in (1, 4, 8, 16, 24, 32, 64, 256):
        size = 8192 // pieces
        sources = np.random.default_rng(1).integers(0, len(tokens) - size, pieces)
        places = np.arange(pieces) * size

        def each(sources: Any = sources, size: int = size, total: int = size * pieces) -> None:
            views = [tokens[one : one + size] for one in sources.tolist()]
            np.concatenate(views, out=wide[:total], casting="unsafe")

        def gather(offsets: Any = sources - places, size: int = size, total: int = size * pieces) -> None:
            where = np.repeat(offsets, size)
            where += at[:total]
            tokens.take(where, out=narrow[:total], mode="clip")
            wide[:total] = narrow[:total]

        costs = [min(_us(work) for _ in range(7)) for work in (each, gather)]
        print(f"{pieces:7d}{costs[0]:10.1f}{costs[1]:11.1f}")


def _us(work: Callable[[], None]) -> float:
    start = thread_time_ns()
    for _ in range(300):
        work()
    return (thread_time_ns() - start) / 300e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parquet", help="a corpus with a column text in place of the built-in one")
    parser.add_argument("--copies", action="store_true", help="only: one gather against a copy of each piece")
    parser.add_argument("--hand-over", action="store_true", help="only: what handing over costs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.copies:
        copies()
        return 0
    corpus = {"parquet": arguments.parquet} if arguments.parquet else {"builtin": "python-docs"}
    if not arguments.hand_over:
        compare(corpus, arguments.rounds)
    hand_over(corpus, max(1, arguments.rounds // 3))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
