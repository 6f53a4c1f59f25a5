"""Lets Spark's executors tokenize shares of a corpus: the work of a driver that is a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.data.shares import ShareJob, write_share
from trainer.data.spark_process import SparkProcess
from trainer.errors import InputError

_MOST_PARTITIONS = 10_000
_WAVES = 4  # runs of shares for each core, where a corpus cannot be read from its middle


class SparkDriver:
    """A Spark driver that makes shares; they appear in the job's folder as they are finished."""

    def __init__(self, job: ShareJob, missing: list[int], master: str | None, timeout_s: float) -> None:
        """Raises InputError where PySpark or Java are not there."""
        self._job, self._missing = job, missing
        self.process = SparkProcess(ShareWork(job, tuple(missing)), master, timeout_s)

    def wait_for(self, share: Path) -> None:
        """Return when the share is there. Raises InputError where Spark fails, dies or takes too long."""
        self.process.wait_until(share.is_dir, self._left, "finished no share")

    def close(self) -> None:
        """End the driver and its Java machine."""
        self.process.close()

    def _left(self) -> int:
        return sum(not self._job.place(number).is_dir() for number in self._missing)


@dataclass(frozen=True)
class ShareWork:
    """Shares to be made, by number."""

    job: ShareJob
    missing: tuple[int, ...]
    name: str = "harness data pretokenize"
    java_options: str = ""

    @property
    def settings(self) -> Mapping[str, str]:
        return {}

    def run(self, session: Any, report: Callable[..., None]) -> None:
        """Let executors make them."""
        location = Path(self.job.tokenizer.location)
        session.sparkContext.addFile(str(location), recursive=location.is_dir())
        missing, parts = list(self.missing), min(len(self.missing), _MOST_PARTITIONS)
        if (self.job.corpus.format, self.job.corpus.content) != ("parquet", "text"):
            # Every task reads the corpus from its beginning to its shares: few tasks, each with a run of them.
            parts = min(parts, max(1, session.sparkContext.defaultParallelism) * _WAVES)
        places = session.range(0, len(missing), 1, parts)
        places.mapInArrow(task(self.job, missing), "share long").collect()  # the numbers of the shares


def task(job: ShareJob, missing: list[int]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What `mapInArrow` calls on executors, with rows of one column: places in ``missing``.

    It gives back the numbers of the shares that it made. Nothing else leaves an executor but through the shared folder.
    """

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            made = [write_share(on_executor(job), missing[place]) for place in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(made, pa.int64())], ["share"])

    return write


_here: dict[str, ShareJob] = {}  # of an executor, by folder


def on_executor(job: ShareJob) -> ShareJob:
    """The job with the tokenizer that came with it: the driver's file lies on another machine."""
    if job.folder not in _here:
        from pyspark import SparkFiles

        info = job.tokenizer
        asked, found = " ".join(info.engine.split()[:2]), f"{info.library} {_version(info.library)}"
        if found != asked:
            raise InputError(
                f"an executor has {found}, this machine {asked}: they may split text differently; install the same "
                "version on all"
            )
        here = replace(info, location=SparkFiles.get(Path(info.location).name))
        _here[job.folder] = replace(job, tokenizer=here)
    return _here[job.folder]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "missing"
