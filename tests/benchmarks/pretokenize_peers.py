"""Pretokenizes the same text with the same vocabulary by this project and by others, side by side.

``python -m tests.benchmarks.pretokenize_peers --peers PYTHON`` runs every program of ``tests/benchmarks/peers`` in
turn, each in a process of its own on the same cores, ``--rounds`` times in changing order, and prints MB of text per
second (medians) and how many times as fast this project is. PYTHON: one that has the peers (the extra ``peers``; this
project runs in the present one). MosaicML streaming asks for older versions of several packages, so it may need a
Python of its own: ``--python streaming=PYTHON``. What is not installed is left out, with a line. Nothing is downloaded:
the text is the Python documentation, or a parquet file (``--corpus``), the vocabulary a BPE trained on it. Every
program's ids are read back and must be the same ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import Corpus, iter_texts, prepare_corpus
from trainer.data.tokenizers import TokenizerInfo, prepare_tokenizer
from trainer.data.train_tokenizer import END_OF_TEXT
from trainer.errors import InputError

HERE = Path(__file__).parent / "peers"
ROOT = Path(__file__).parents[2]
ROW_GROUP = 1000


class Program(NamedTuple):
    """One way to do it: the file that does, the module that it needs, and which engine tokenizes."""

    file: str
    module: str
    engine: str = "tokenizers"

    @property
    def ours(self) -> bool:
        return self.file == "ours"


PROGRAMS = {
    "ours": Program("ours", "trainer"),
    "ours, tiktoken": Program("ours", "tiktoken", "tiktoken"),
    "ours, gigatoken": Program("ours", "gigatoken", "gigatoken"),
    "ours, fastokens": Program("ours", "fastokens", "fastokens"),
    "datasets": Program("hf_datasets", "datasets"),
    "datatrove": Program("datatrove_tokens", "datatrove"),
    "streaming": Program("mosaic_streaming", "streaming"),
    "litdata": Program("litdata_tokens", "litdata"),
    "nanoGPT": Program("nanogpt_prepare", "datasets"),
}
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "LITDATA_DISABLE_VERSION_CHECK": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


class Result(NamedTuple):
    """One run: seconds of the work and of the whole process, and what was read back."""

    seconds: float
    whole: float
    check: list[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="has the peers (default: this one)")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PYTHON", help="of one program")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--corpus", metavar="FILE", help="parquet with a column text")
    parser.add_argument("--mb", type=float, default=20, help="of text (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="of one run")
    parser.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(PROGRAMS):
        raise InputError(f"--only {', '.join(sorted(unknown))}: allowed: {', '.join(PROGRAMS)}")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    with TemporaryDirectory(prefix="pretokenize-peers-") as scratch:
        results = measure(arguments, Path(scratch))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results, indent=1) + "\n")


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, object]:
    """Run all of them, and print the table; the same figures as plain data."""
    corpus, tokenizer, size = inputs(arguments, scratch / "texts")
    named = dict(one.split("=", 1) for one in arguments.python)
    pythons = {
        name: named.get(name, sys.executable if program.ours else arguments.peers)
        for name, program in PROGRAMS.items()
        if not arguments.only or name in arguments.only
    }
    programs = {name: python for name, python in pythons.items() if installed(name, python)}
    found: dict[str, list[Result]] = {name: [] for name in programs}
    print(
        f"{size / 1e6:.1f} MB of text, {corpus.documents} documents, {tokenizer.vocab_size} ids, {arguments.cores} "
        f"cores, {arguments.rounds} rounds; load before: {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    for number in range(arguments.rounds):
        order = list(programs)
        random.Random(number).shuffle(order)
        for name in order:
            result = run(name, programs[name], arguments, scratch, tokenizer)
            found[name].append(result)
            print(f"round {number + 1}: {name}: {size / 1e6 / result.seconds:.2f} MB/s", file=sys.stderr, flush=True)
    return table(found, size)


def inputs(arguments: argparse.Namespace, texts: Path) -> tuple[Corpus, TokenizerInfo, int]:
    """The text as two files of a share each, none of its documents empty; the tokenizer; bytes of text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = CorpusConfig(parquet=arguments.corpus) if arguments.corpus else CorpusConfig(builtin="python-docs")
    chosen: list[str] = []
    size = 0
    for some in iter_texts(prepare_corpus(source)):
        for text in some:
            if text and size < arguments.mb * 1e6:
                chosen.append(text)
                size += len(text.encode())
    texts.mkdir()
    middle = len(chosen) // 2
    for name, share in (("a", chosen[:middle]), ("b", chosen[middle:])):
        pq.write_table(pa.table({"text": share}), texts / f"{name}.parquet", row_group_size=ROW_GROUP)
    corpus = prepare_corpus(CorpusConfig(parquet=str(texts / "*.parquet")))
    train = {"train": {"kind": "bpe", "vocab_size": arguments.vocab_size}}
    return corpus, prepare_tokenizer(TokenizerConfig.model_validate(train), corpus), size


def installed(name: str, python: str) -> bool:
    """Whether that Python has what the program needs; says so where it has not."""
    if PROGRAMS[name].module == "trainer":
        return True
    asked = subprocess.run(
        [python, "-c", f"import {PROGRAMS[name].module}"], capture_output=True, text=True, timeout=120, check=False
    )
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"{name} is left out: {python} cannot import {PROGRAMS[name].module} ({why})", flush=True)
    return not asked.returncode


def run(name: str, python: str, arguments: argparse.Namespace, scratch: Path, tokenizer: TokenizerInfo) -> Result:
    """One run in a fresh process and folder; InputError where it fails."""
    program = PROGRAMS[name]
    with TemporaryDirectory(dir=scratch) as out:
        command = [
            *(python, str(HERE / f"{program.file}.py"), "--texts", str(scratch / "texts")),
            *("--tokenizer", tokenizer.location, "--eos", END_OF_TEXT, "--eos-id", str(tokenizer.eos_id)),
            *("--out", out, "--processes", str(arguments.cores), "--engine", program.engine),
            *("--vocab-size", str(arguments.vocab_size)),
        ]
        environment = {**os.environ, **OFFLINE, "PYTHONPATH": str(ROOT), "HF_HOME": f"{out}/home"}
        begun = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=arguments.timeout, cwd=out, check=False
        )
        whole = time.perf_counter() - begun
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise InputError(f"{name} failed ({done.returncode}): " + "\n".join(done.stderr.splitlines()[-15:]))
    answer = json.loads(lines[-1])
    return Result(answer["seconds"], whole, answer["check"])


def table(found: dict[str, list[Result]], size: int) -> dict[str, object]:
    """Print what was found; refuse figures of other ids."""
    checks = {tuple(result.check) for results in found.values() for result in results}
    if len(checks) != 1:
        each = {name: results[0].check for name, results in found.items()}
        raise InputError(f"the programs wrote other ids (number, sum, sum of squares): {each}")
    speeds = {name: [size / 1e6 / result.seconds for result in results] for name, results in found.items()}
    same = median(speeds["ours"]) if "ours" in speeds else None
    best = max((median(some) for name, some in speeds.items() if PROGRAMS[name].ours), default=None)
    print(f"\n{next(iter(checks))[0]:,} tokens each, the same ids\n")
    print(
        "| program | engine | MB/s to disk, median [range] | whole process, MB/s | ours, same engine | ours, fastest |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    rows: dict[str, object] = {}
    for name, some in sorted(speeds.items(), key=lambda item: -median(item[1])):
        whole = median([size / 1e6 / result.whole for result in found[name]])
        ratios = [None if PROGRAMS[name].ours or one is None else one / median(some) for one in (same, best)]
        cells = ["" if ratio is None else f"{ratio:.1f}x" for ratio in ratios]
        speed = f"{median(some):.2f} [{min(some):.2f}-{max(some):.2f}]"
        print(f"| {name} | {PROGRAMS[name].engine} | {speed} | {whole:.2f} | {cells[0]} | {cells[1]} |")
        rows[name] = {"mb_per_s": some, "median": median(some), "whole_process_mb_per_s": whole, "times": ratios}
    return {"text_bytes": size, "tokens": next(iter(checks))[0], "programs": rows}


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"pretokenize_peers: {error}")
