"""What pretokenizing to disk reaches of the engine's own speed in memory, side by side.

``python -m tests.benchmarks.pretokenize_speed --engine tokenizers``. Both tokenize the same documents in as many
threads, by turns: in memory the engine alone, of strings that are there; to disk all that ``harness data pretokenize``
does after the corpus was checked: reading it, end-of-text ids, digests, writing, the manifest, and its check. Reading
alone, in one thread, stands beside them: what it takes of the cores the engine does not have. So do the two parts of
the rest that stay however it is arranged: pyarrow's own reading, up to Arrow's arrays, and the tokens' digests and
writing. In memory the engine may keep every core busy. To disk then cannot reach a larger part of its speed than the
engine has of the CPU time, with all of the rest, or with these two parts alone: both are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from trainer.config import CorpusConfig, TokenizerConfig, TrainTokenizer
from trainer.data import cache
from trainer.data.corpus import iter_texts, prepare_corpus
from trainer.data.corpus.reading import pieces
from trainer.data.formats.flat import TokenJournal, token_type
from trainer.data.pretokenize import pretokenize
from trainer.data.token_groups import corpus_groups, text_groups
from trainer.data.tokenizers import load_tokenizer, prepare_tokenizer


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--corpus", metavar="PATH", help="of any format (default: python-docs)")
    options.add_argument("--documents", type=int, metavar="N", help="only the first")
    options.add_argument("--vocab-size", type=int, default=4096, metavar="N", help="of the BPE (default: %(default)s)")
    options.add_argument("--engine", default="tokenizers", metavar="NAME", help="data.tokenizer.engine, or auto")
    options.add_argument("--workers", type=int, default=2, metavar="N", help="threads (default: %(default)s)")
    options.add_argument("--format", default="flat", choices=("flat", "token-list", "padded"))
    options.add_argument("--repeats", type=int, default=5, metavar="N", help="of each (default: %(default)s)")
    options.add_argument("--dir", metavar="DIR", help="on whose disk (default: TMPDIR)")
    arguments = options.parse_args()
    place = {"path": arguments.corpus} if arguments.corpus else {"builtin": "python-docs"}
    corpus = prepare_corpus(CorpusConfig.model_validate({**place, "documents": arguments.documents}))
    tokenizer = {"train": TrainTokenizer(vocab_size=arguments.vocab_size), "engine": arguments.engine}
    info = prepare_tokenizer(TokenizerConfig.model_validate(tokenizer), corpus)
    groups = list(text_groups(iter_texts(corpus)))
    megabytes = sum(group.text_bytes for group in groups) / 1e6
    print(f"{corpus.name}: {corpus.documents:,} documents, {megabytes:.1f} MB of text; {info.engine}", flush=True)

    def in_memory() -> None:
        engine = load_tokenizer(info)  # anew: what it remembers of words helps it with text that it has seen
        with ThreadPoolExecutor(arguments.workers) as pool:
            for encoded in pool.map(lambda group: engine.encode_flat(group.texts), groups):
                del encoded

    folder = Path(tempfile.mkdtemp(prefix="pretokenize-speed-", dir=arguments.dir))

    def to_disk() -> None:
        shutil.rmtree(folder / "out", ignore_errors=True)
        pretokenize(corpus, info, arguments.format, 256, folder / "out", workers=arguments.workers)

    def reading() -> None:
        for _ in text_groups(iter_texts(corpus)):
            pass

    def to_arrow() -> None:
        for _ in pieces(corpus, corpus.documents):
            pass

    tokens = list(corpus_groups(corpus, info))

    def writing() -> None:
        shutil.rmtree(folder / "journal", ignore_errors=True)
        with TokenJournal(folder / "journal", {}, token_type(info.vocab_size)) as journal:
            for _ in journal.kept():
                pass
            for group in tokens:
                journal.add(group.ids, group.lengths)

    runs = {"in memory": in_memory, "to disk": to_disk, "reading": reading, "to Arrow": to_arrow, "writing": writing}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    cpu_s: dict[str, list[float]] = {name: [] for name in seconds}
    try:
        cache.clean()
        for repeat in range(arguments.repeats + 1):  # the first is not counted
            for name, run in runs.items():
                begun_s, begun_cpu_s = time.perf_counter(), _cpu_s()
                run()
                if repeat:
                    seconds[name].append(time.perf_counter() - begun_s)
                    cpu_s[name].append(_cpu_s() - begun_cpu_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, found in seconds.items():
        listed = ", ".join(f"{one:.2f}" for one in found)
        print(f"{name:10}{megabytes / median(found):8.1f} MB/s  ({listed} s; CPU time {median(cpu_s[name]):.2f} s)")
    ratios = [memory / disk for memory, disk in zip(seconds["in memory"], seconds["to disk"], strict=True)]
    print(f"to disk: {median(ratios):.0%} of the engine's speed in memory ({min(ratios):.0%} to {max(ratios):.0%})")
    engine_s, spared_s = median(cpu_s["in memory"]), median(cpu_s["to Arrow"]) + median(cpu_s["writing"])
    print(f"of its CPU time {engine_s / median(cpu_s['to disk']):.0%} are the engine's")
    print(f"with nothing beside it but reading to Arrow, and writing: {engine_s / (engine_s + spared_s):.0%}")
    return 0


def _cpu_s() -> float:
    """CPU time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
