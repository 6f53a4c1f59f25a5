"""Pretokenizes on several machines: Spark's executors tokenize shares of a corpus, this process joins them in order.

Only numbers of shares pass through Spark's driver. All machines see the folder with the shares.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import filterfalse
from pathlib import Path
from typing import Any

from trainer.data import cache
from trainer.data.corpus import CORPUS_ROW_GROUP, Corpus, tables
from trainer.data.formats.flat import PLACES, TOKENS, FlatWriter, open_flat, token_type
from trainer.data.spark_process import SparkProcess
from trainer.data.token_groups import TokenGroup, TokenGroups, encoded_groups, text_groups, texts_from
from trainer.data.tokenizers import TokenizerInfo
from trainer.errors import InputError
from trainer.files import partial_path, read_json, remove

FACTS = "share.json"
_SHARES = 64  # shares of a corpus, unless they would be larger than the limit or smaller than a row group
_MOST_DOCUMENTS = 50_000  # documents of a share: the work to repeat when a machine is lost


@dataclass(frozen=True)
class ShareJob:
    """Description of the work for executors. All machines see ``folder``."""

    corpus: Corpus
    tokenizer: TokenizerInfo
    folder: str
    documents: int  # documents of each share except the last

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: TokenizerInfo, folder: Path) -> ShareJob:
        """Return the job, with the corpus divided into shares."""
        return cls(corpus, tokenizer, str(folder), documents_per_share(corpus.documents, _SHARES, _MOST_DOCUMENTS))

    @property
    def count(self) -> int:
        return -(-self.corpus.documents // self.documents)

    def place(self, number: int) -> Path:
        return Path(self.folder) / f"{number:06}"


def documents_per_share(documents: int, shares: int, most: int) -> int:
    """Return the documents of one of about ``shares`` shares: a multiple of CORPUS_ROW_GROUP, at most ``most``."""
    even = -(-documents // shares // CORPUS_ROW_GROUP) * CORPUS_ROW_GROUP
    return max(CORPUS_ROW_GROUP, min(even, most))


@contextmanager
def share_folder(place: Path) -> Iterator[Path]:
    """Context with a temporary folder, renamed to ``place``, or removed after an error or if that exists."""
    temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        yield temporary
        try:
            temporary.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        remove(temporary)


def write_share(job: ShareJob, number: int) -> int:
    """Tokenize a share into its folder, unless that exists. Return ``number``. Raises InputError."""
    place = job.place(number)
    if place.is_dir():
        return number
    if not place.parent.is_dir():
        raise InputError(f"{place.parent}: not seen by every machine of the cluster; give a folder on a shared one")
    first = number * job.documents
    count = min(job.documents, job.corpus.documents - first)
    with share_folder(place) as folder:
        written = _write(job, documents(job.corpus, first, count), folder)
        if written != count:
            raise InputError(
                f"data.corpus: {written} of {count} documents of {job.corpus.name} found from document "
                f"{first} on; it was changed after it was prepared"
            )
    return number


def _write(job: ShareJob, texts: Iterator[list[str]], to: Path) -> int:
    """Tokenize ``texts`` into the share's folder ``to``. Return the number of documents."""
    written = text_bytes = 0
    with FlatWriter(to, token_type(job.tokenizer.vocab_size)) as writer:
        for group in encoded_groups(text_groups(texts), job.tokenizer, workers=1):
            writer.add(group.ids, group.lengths)
            written += len(group.lengths)
            text_bytes += group.text_bytes
    facts = {"documents": written, "text_bytes": text_bytes, "digests": _digests(to)}
    (to / FACTS).write_text(json.dumps(facts) + "\n")
    return written


def read_share(job: ShareJob, number: int, skip: int = 0) -> Iterator[TokenGroup]:
    """Yield a share's tokens without its first ``skip`` documents. Raises InputError if files were changed."""
    place = job.place(number)
    flat = open_flat(place, token_type(job.tokenizer.vocab_size))
    try:
        facts = read_json(place / FACTS)
        is_intact = facts["digests"] == _digests(place) and facts["documents"] == flat.documents
        text_bytes = int(facts["text_bytes"])
    except (OSError, ValueError, TypeError, KeyError):
        is_intact, text_bytes = False, 0
    if not is_intact:
        raise InputError(f"{place}: was changed after it was written; delete the folder, and it will be made again")
    for first in range(skip, flat.documents, CORPUS_ROW_GROUP):
        last = min(first + CORPUS_ROW_GROUP, flat.documents)
        places = flat.places[first : last + 1]
        # An estimate, for the progress alone.
        group_bytes = text_bytes * last // flat.documents - text_bytes * first // flat.documents
        yield TokenGroup(flat.tokens[places[0] : places[-1]], places[1:] - places[:-1], group_bytes)


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for name in (TOKENS, PLACES):
        with (folder / name).open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def documents(corpus: Corpus, first: int, count: int) -> Iterator[list[str]]:
    """Yield ``count`` documents from number ``first`` on, in lists. Parquet row groups before are not read."""
    remaining = count
    for texts in _from(corpus, first):
        taken = texts[:remaining]
        remaining -= len(taken)
        yield taken
        if not remaining:
            return


def _from(corpus: Corpus, first: int) -> Iterator[list[str]]:
    if (corpus.format, corpus.content) != ("parquet", "text") or any("://" in name for name in corpus.files):
        yield from texts_from(corpus, first)
        return
    skip = first
    for name in corpus.files:
        if not Path(name).exists():
            raise InputError(f"{name}: not seen by every machine of the cluster")
        rows = tables.open_parquet(name).metadata.num_rows
        if skip < rows:
            for batch in tables.batches(name, "parquet", [corpus.column], skip):
                yield batch.column(0).to_pylist()
        skip = max(skip - rows, 0)


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
        """Prepare the job. ``folder``: for shares, all see it. ``master``: None: Spark's. ``timeout_s``: per share."""
        if corpus.content == "tokens":
            raise InputError(f"--engine spark: {corpus.name} holds token ids: there is nothing to tokenize")
        key = [corpus.fingerprint, corpus.documents, tokenizer.fingerprint, tokenizer.engine, tokenizer.eos_id]
        self.folder = partial_path(folder.absolute() / f"spark-{cache.fingerprint(key)}")
        self.job = ShareJob.of(corpus, tokenizer, self.folder)
        self._master, self._timeout_s = master, timeout_s
        self._process: SparkProcess | None = None
        self._lock: int | None = None

    def __call__(self, start: int) -> TokenGroups:
        """Yield the tokens from document ``start`` on, in order; waits for each share until Spark has made it."""
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
        """End Spark and remove the shares. ``keep``: True to leave finished shares, for another process."""
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
    """Work of the Spark driver: executors tokenize the shares (runs of documents) numbered in ``missing``."""

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
    """Return the function for ``mapInArrow``: from indices into ``missing`` to the numbers of tokenized shares."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            counts = [write_share(on_executor(job), missing[place]) for place in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(counts, pa.int64())], ["share"])

    return write


_here: dict[str, ShareJob] = {}  # jobs of this executor by folder


def on_executor(job: ShareJob) -> ShareJob:
    """Return ``job`` with the tokenizer that Spark sent. Raises InputError for another version of its library."""
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
