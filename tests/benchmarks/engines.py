"""Measures how fast every engine that is installed encodes new text, by every strategy, side by side.

``python -m tests.benchmarks.engines [--parquet FILES] [--vocab-size N] [--blocks N] [--shares N] [--libraries-own]``
trains a byte-level BPE on the corpus and cuts the corpus into blocks. Each engine with each strategy encodes each block
once, in an order that rotates from block to block: none ever sees a text twice, and a slow minute slows all of them.
The ids of each are compared with the reference's. It prints the median and the range over the blocks, and MB per second
of this process's CPU time, which other programs disturb less (a pool's processes are not in it).
``--libraries-own`` adds what the libraries offer for many documents by themselves, with threads of their own where they
have them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from statistics import median
from time import perf_counter_ns, process_time_ns

import numpy as np

from trainer.config import CorpusConfig, DataConfig, TokenizerConfig
from trainer.data.corpus import Corpus, iter_texts, prepare_corpus
from trainer.data.engines.base import Encoded, joined, utf8_bytes
from trainer.data.engines.choose import installed
from trainer.data.engines.libraries import OTHERS
from trainer.data.strategies import by_strategy
from trainer.data.tokenizers import TokenizerInfo, load_tokenizer, prepare_tokenizer

STRATEGIES = ("per-sample", "batched", "threads", "pool")
REFERENCE = "tokenizers", "batched"
Way = tuple[str, str]
Encode = Callable[[list[str]], Encoded]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parquet", help="files with a column text; default: python-docs")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--block-mb", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=64, help="documents of a call")
    parser.add_argument("--shares", type=int, default=2, help="threads, or processes of the pool")
    parser.add_argument("--libraries-own", action="store_true")
    asked = parser.parse_args()
    given = {"builtin": "python-docs"} if asked.parquet is None else {"parquet": asked.parquet}
    corpus = prepare_corpus(CorpusConfig.model_validate(given))
    train = {"train": {"kind": "bpe", "vocab_size": asked.vocab_size}}
    info = prepare_tokenizer(TokenizerConfig.model_validate(train), corpus)
    blocks = list(_blocks(corpus, asked.blocks, asked.block_mb * 1e6))
    ways = _ways(info, asked.shares)
    if asked.libraries_own:
        ways |= _libraries_own(info, asked.shares)
    print(_machine(corpus, info, blocks), flush=True)
    speeds, per_cpu = measure(ways, blocks, asked.batch)
    base = median(speeds[REFERENCE])
    print("| engine | strategy | MB/s | least to most | against tokenizers, batched | MB per CPU second |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for (name, strategy), found in speeds.items():
        middle = median(found)
        cpu = "-" if strategy == "pool" else f"{median(per_cpu[name, strategy]):.2f}"
        least, most = min(found), max(found)
        print(f"| {name} | {strategy} | {middle:.2f} | {least:.2f} to {most:.2f} | {middle / base:.1f}x | {cpu} |")
    print(f"load average after: {os.getloadavg()[0]:.1f}")


def measure(
    ways: dict[Way, Encode], blocks: list[list[str]], batch: int
) -> tuple[dict[Way, list[float]], dict[Way, list[float]]]:
    """MB/s, and MB per CPU second, of each way on each block. SystemExit where one's ids are not the reference's."""
    speeds: dict[Way, list[float]] = {way: [] for way in ways}
    per_cpu: dict[Way, list[float]] = {way: [] for way in ways}
    order = list(ways)
    for encode in ways.values():
        encode(["warm", "up"])  # imports, and processes of a pool
    for number, texts in enumerate(blocks):
        size = sum(map(utf8_bytes, texts))
        found: dict[Way, np.ndarray] = {}
        place = number * 3 % len(order)
        for way in order[place:] + order[:place]:
            begun, used = perf_counter_ns(), process_time_ns()
            parts = [ways[way](texts[at : at + batch]) for at in range(0, len(texts), batch)]
            speeds[way].append(size * 1e3 / (perf_counter_ns() - begun))
            per_cpu[way].append(size * 1e3 / max(process_time_ns() - used, 1))
            found[way] = np.concatenate([part.ids for part in parts])
        for way, ids in found.items():
            if not np.array_equal(ids, found[REFERENCE]):
                raise SystemExit(f"{' '.join(way)}: its ids are not those of {' '.join(REFERENCE)}")
    return speeds, per_cpu


def _ways(info: TokenizerInfo, shares: int) -> dict[Way, Encode]:
    """Each with an engine of its own: one that has seen a text knows its words."""
    found: dict[Way, Encode] = {}
    names = ["tokenizers", *(name for name in OTHERS if installed(name))]
    for strategy in sorted(STRATEGIES, key=lambda one: one != "pool"):  # processes are forked before threads begin
        for name in names:
            config = DataConfig.model_validate(
                {"tokenize": strategy, "tokenize_threads": shares, "tokenize_processes": shares}
            )
            own = info if name == "tokenizers" else _with(info, name)
            way = by_strategy(load_tokenizer(own), config).encode_flat
            if strategy == "pool":
                way(["one", "two", "three", "four"] * shares)
            found[name, strategy] = way
    return {(name, strategy): found[name, strategy] for name in names for strategy in STRATEGIES}


def _with(info: TokenizerInfo, name: str) -> TokenizerInfo:
    return replace(info, engine=f"{name} {version(name)}")


def _libraries_own(info: TokenizerInfo, threads: int) -> dict[Way, Encode]:
    """What each library does with a list of documents, into arrays as it gives them."""
    found: dict[Way, Encode] = {}
    if installed("gigatoken"):
        import gigatoken

        giga = gigatoken.Tokenizer(info.location)

        def of_awkward(texts: list[str]) -> Encoded:
            layout = giga.encode_batch(texts, parallel=True).layout
            return Encoded(np.asarray(layout.content.data), np.diff(np.asarray(layout.offsets.data)))

        found["gigatoken", "its encode_batch"] = of_awkward
    if installed("tiktoken"):
        from trainer.data.engines.libraries import Tiktoken

        tiktoken = Tiktoken(info.location, special_as_text=False)
        ids = tiktoken._ids

        def of_lists(texts: list[str]) -> Encoded:
            encoded = tiktoken._encoding.encode_batch(texts, num_threads=threads, disallowed_special=())
            flat = joined([np.array(one, dtype=np.uint32) for one in encoded])
            return flat if ids is None else Encoded(ids[flat.ids], flat.lengths)

        found["tiktoken", "its encode_batch"] = of_lists
    return found


def _blocks(corpus: Corpus, count: int, size: float) -> Iterator[list[str]]:
    """Runs of documents of about ``size`` bytes each; fewer where the corpus ends."""
    held: list[str] = []
    held_bytes = 0
    for texts in iter_texts(corpus):
        for text in texts:
            held.append(text)
            held_bytes += utf8_bytes(text)
            if held_bytes >= size:
                yield held
                held, held_bytes, count = [], 0, count - 1
                if not count:
                    return


def _machine(corpus: Corpus, info: TokenizerInfo, blocks: list[list[str]]) -> str:
    size = sum(utf8_bytes(text) for texts in blocks for text in texts) / 1e6
    engines = [info.engine, *(_with(info, name).engine for name in OTHERS if installed(name))]
    return (
        f"{corpus.name}: {len(blocks)} blocks, {sum(map(len, blocks))} documents, {size:.1f} MB; byte-level BPE of "
        f"{info.vocab_size} tokens\n{', '.join(engines)}\n{len(os.sched_getaffinity(0))} cores, load average before: "
        f"{os.getloadavg()[0]:.1f}\n"
    )


if __name__ == "__main__":
    main()
