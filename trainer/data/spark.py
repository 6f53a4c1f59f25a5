"""Pretokenizes beyond one machine: Spark's executors tokenize shares of a corpus, this process joins them in order.

They are joined by the code that writes any pretokenized folder, so the result is the same, byte by byte. What passes
through Spark's driver is the number of each share. Executors need this package, and see the corpus' files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from trainer.data import cache
from trainer.data.corpus import Corpus
from trainer.data.shares import ShareJob, read_share
from trainer.data.spark_driver import SparkDriver
from trainer.data.token_groups import TokenGroups
from trainer.data.tokenizers import TokenizerInfo
from trainer.errors import InputError
from trainer.leftovers import partial_path, remove

DEFAULT_TIMEOUT_S = 600.0


class SparkTokens:
    """Gives the tokens of a corpus' documents, tokenized by Spark: a ``TokenSource`` of ``pretokenize``.

    Shares that a killed process left are taken as they are.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: TokenizerInfo,
        folder: Path,
        master: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """``folder``: where shares lie until :meth:`close` removes them, one that all machines see.

        ``master``: None for the one that Spark's own configuration names.
        ``timeout_s``: how long Spark may take to start, and to end a share.
        """
        if corpus.content == "tokens":
            raise InputError(f"--engine spark: {corpus.name} holds token ids: there is nothing to tokenize")
        key = [corpus.fingerprint, corpus.documents, tokenizer.fingerprint, tokenizer.engine, tokenizer.eos_id]
        self.folder = partial_path(folder.absolute() / f"spark-{cache.fingerprint(key)}")
        self.job = ShareJob.of(corpus, tokenizer, self.folder)
        self._master, self._timeout_s = master, timeout_s
        self._driver: SparkDriver | None = None
        self._lock: int | None = None

    def __call__(self, start: int) -> TokenGroups:
        """The tokens of all documents from number ``start`` on, share by share as they are finished."""
        first = start // self.job.documents
        self._open(range(first, self.job.count))
        for number in range(first, self.job.count):
            if not self.job.place(number).is_dir():
                assert self._driver is not None, "whatever is missing was asked for"
                self._driver.wait_for(self.job.place(number))
            yield from read_share(self.job, number, max(start - number * self.job.documents, 0))

    @property
    def master(self) -> str | None:
        """Spark's master, where Spark was needed and has been ready."""
        return None if self._driver is None else self._driver.process.master

    def close(self, *, keep: bool = False) -> None:
        """End Spark, and remove the shares unless there are some and another process is to go on with them."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None
        made = any(self.job.place(number).is_dir() for number in range(self.job.count))
        if self._lock is not None and not (keep and made):
            remove(self.folder)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self, numbers: Iterable[int]) -> None:
        """Start Spark for those that are not there; InputError where another process is at the same shares."""
        if self._lock is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(self._lock)
                self._lock = None
                raise InputError(f"{self.folder}: another process tokenizes this corpus there; wait for it") from error
            except OSError:  # a network file system without locks
                pass
        missing = [number for number in numbers if not self.job.place(number).is_dir()]
        if missing and self._driver is None:
            self._driver = SparkDriver(self.job, missing, self._master, self._timeout_s)
