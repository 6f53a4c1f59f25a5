"""What each of these programs is given, and what it reports: a JSON line with its time and a check of the ids.

They run in a Python of their own, which need not have this project: nothing of it is imported here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Job(NamedTuple):
    """Parquet files with a column ``text``, and what to make of them."""

    texts: list[str]
    tokenizer: str  # a tokenizer.json
    eos: str  # the token that ends each document, and its id
    eos_id: int
    out: str
    processes: int
    engine: str  # of ours
    vocab_size: int  # of ours: a tokenizer that is trained once is found again by it


def job() -> Job:
    """The job that the command line describes."""
    parser = argparse.ArgumentParser()
    for name in ("texts", "tokenizer", "eos", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--eos-id", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--engine", default="")
    given = parser.parse_args()
    texts = sorted(str(path) for path in Path(given.texts).glob("*.parquet"))
    words = given.tokenizer, given.eos, given.eos_id, given.out, given.processes, given.engine, given.vocab_size
    return Job(texts, *words)


class Clock:
    """Times the work: from when everything is imported to when everything lies on the disk."""

    seconds = 0.0

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        begun = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):  # what libraries say there is no part of the answer
            yield
        self.seconds = time.perf_counter() - begun


def report(clock: Clock, ids: Iterable[Any], **more: Any) -> None:
    """Print the time, and what was written: read back from the disk, after the time is taken.

    ``ids``: arrays. Their number, sum and sum of squares do not depend on the order of documents.
    """
    tokens = total = squares = 0
    with contextlib.redirect_stdout(sys.stderr):
        for some in ids:
            values = np.asarray(some).astype(np.uint64)
            tokens += len(values)
            total += int(values.sum())
            squares += int((values * values).sum())
    print(json.dumps({"seconds": clock.seconds, "check": [tokens, total, squares], **more}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # no library's cleaning up


def half(texts: list[str], processes: int) -> list[list[str]]:
    """The files dealt out to processes."""
    return [texts[place::processes] for place in range(processes)]
