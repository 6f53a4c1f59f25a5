"""Pretokenizes on several machines: Spark's executors tokenize shares of a corpus, this process joins them in order.

The code that writes any pretokenized folder joins them, so the result is the same, byte by byte. Only the number of
each share passes through Spark's driver. Executors need this package and access to the corpus' files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import filterfalse
from pathlib import Path
from typing import Any

from trainer.data import cache
from trainer.data.corpus import Corpus
from trainer.data.shares import ShareJob, read_share, write_share
from trainer.data.spark_process import SparkProcess
from trainer.data.token_groups import TokenGroups
from trainer.data.tokenizers import TokenizerInfo
from trainer.errors import InputError
from trainer.files import partial_path, remove

DEFAULT_TIMEOUT_S = 600.0
_MOST_PARTITIONS = 10_000
_WAVES = 4  # tasks per core, for a corpus that can only be read from its beginning


class SparkTokens:
    """Yields a corpus' tokens, tokenized by Spark, as a ``TokenSource``. Continues a killed process' work."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: TokenizerInfo,
        folder: Path,
        master: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Prepare the job. ``folder``: seen by every machine, for shares until :meth:`close` removes them.

        ``master``: None for the master of Spark's configuration. ``timeout_s``: limit for Spark's start and each share.
        """
        if corpus.content == "tokens":
            raise InputError(f"--engine spark: {corpus.name} holds token ids: there is nothing to tokenize")
        key = [corpus.fingerprint, corpus.documents, tokenizer.fingerprint, tokenizer.engine, tokenizer.eos_id]
        self.folder = partial_path(folder.absolute() / f"spark-{cache.fingerprint(key)}")
        self.job = ShareJob.of(corpus, tokenizer, self.folder)
        self._master, self._timeout_s = master, timeout_s
        self._process: SparkProcess | None = None
        self._lock: int | None = None

    def __call__(self, start: int) -> TokenGroups:
        """Yield the tokens of all documents from number ``start`` on, share by share as they are finished."""
        first = start // self.job.documents
        self._open(range(first, self.job.count))
        for number in range(first, self.job.count):
            if not self._is_finished(number):
                assert self._process is not None, "a driver makes the missing shares"
                self._process.wait_until(self.job.place(number).is_dir, self._unfinished, "finished no share")
            yield from read_share(self.job, number, max(start - number * self.job.documents, 0))

    @property
    def master(self) -> str | None:
        """Spark's master; None before Spark is ready, or if every share was finished already."""
        return None if self._process is None else self._process.master

    def close(self, *, keep: bool = False) -> None:
        """End Spark and remove the shares. ``keep``: leave finished shares for another process to continue with."""
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._lock is not None:
            if not (keep and any(map(self._is_finished, range(self.job.count)))):
                remove(self.folder)
            os.close(self._lock)
            self._lock = None

    def _open(self, numbers: Iterable[int]) -> None:
        """Lock the folder and start Spark for missing shares of ``numbers``. Raises InputError if it is in use."""
        if self._lock is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(self._lock)
                self._lock = None
                raise InputError(f"{self.folder}: another process tokenizes this corpus there; wait for it") from error
            except OSError:  # A network file system may have no locks.
                pass
        if self._process is None and (missing := tuple(filterfalse(self._is_finished, numbers))):
            self._process = SparkProcess(ShareWork(self.job, missing), self._master, self._timeout_s)

    def _is_finished(self, number: int) -> bool:
        return self.job.place(number).is_dir()

    def _unfinished(self) -> int:
        return sum(not self._is_finished(number) for number in range(self.job.count))


@dataclass(frozen=True)
class ShareWork:
    """Work of the Spark driver's process: the shares ``missing``, by number."""

    job: ShareJob
    missing: tuple[int, ...]
    name: str = "harness data pretokenize"
    java_options: str = ""

    @property
    def settings(self) -> Mapping[str, str]:
        return {}

    def run(self, session: Any, report: Callable[..., None]) -> None:
        """Tokenize the missing shares on executors. Returns when all are finished."""
        location = Path(self.job.tokenizer.location)
        session.sparkContext.addFile(str(location), recursive=location.is_dir())
        missing, parts = list(self.missing), min(len(self.missing), _MOST_PARTITIONS)
        if (self.job.corpus.format, self.job.corpus.content) != ("parquet", "text"):
            # Every task reads the corpus from its beginning up to its shares: few tasks with many shares each.
            parts = min(parts, max(1, session.sparkContext.defaultParallelism) * _WAVES)
        places = session.range(0, len(missing), 1, parts)
        places.mapInArrow(task(self.job, missing), "share long").collect()


def task(job: ShareJob, missing: list[int]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the `mapInArrow` function from indices into ``missing`` to numbers of new shares, which it tokenizes."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            counts = [write_share(on_executor(job), missing[place]) for place in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(counts, pa.int64())], ["share"])

    return write


_here: dict[str, ShareJob] = {}  # jobs of this executor by folder


def on_executor(job: ShareJob) -> ShareJob:
    """Return the job with the tokenizer file that Spark sent here. Raises InputError for another library version."""
    if job.folder not in _here:
        from pyspark import SparkFiles

        info = job.tokenizer
        expected, installed = " ".join(info.engine.split()[:2]), f"{info.library} {_version(info.library)}"
        if installed != expected:
            raise InputError(
                f"an executor has {installed}, this machine {expected}: they may split text differently; install the "
                "same version on all"
            )
        local_job = replace(info, location=SparkFiles.get(Path(info.location).name))
        _here[job.folder] = replace(job, tokenizer=local_job)
    return _here[job.folder]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "missing"
