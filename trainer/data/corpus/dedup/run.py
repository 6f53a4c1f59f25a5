"""Removes near-duplicates from a corpus, by either engine, into a new folder that appears when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from trainer.data.corpus.base import Corpus
from trainer.data.corpus.dedup import local
from trainer.data.corpus.dedup.local import Edges
from trainer.data.corpus.dedup.rows import COLUMNS, KEPT, REMOVED, check_parts, schema_of
from trainer.data.corpus.dedup.sketches import DedupJob, DedupSettings, Integers
from trainer.errors import InputError
from trainer.files import check_new, new_folder, remove

Engine = Literal["local", "spark"]
_WORK = ".work"


@dataclass(frozen=True)
class SparkOptions:
    """Spark's master (None: that of Spark's configuration), and the time limit for its start and for each task."""

    master: str | None
    timeout_s: float


@dataclass(frozen=True)
class DedupResult:
    """Summary of a deduplication. All counts are documents, except ``candidates`` and ``verified``, which are pairs."""

    corpus: str
    fingerprint: str
    engine: Engine
    documents: int
    without_shingles: int  # empty documents, which are kept
    identical: int  # documents with the same shingles as an earlier document
    candidates: int  # pairs that share a band and have different shingles
    verified: int  # candidates at least as similar as the threshold
    crowded: int  # documents not compared with all before them, because their bucket is too large
    removed: int
    groups: int  # groups of near-duplicates; one document of each is kept
    rounds: int | None  # Spark's rounds of joining groups; None for the local engine
    master: str | None = None  # Spark's master


@dataclass(frozen=True)
class DedupOutcome:
    """Result: rows of the ``removed`` documents and of those ``kept`` instead; ``edges``: pairs above the threshold."""

    result: DedupResult
    removed: Integers
    kept: Integers
    edges: Edges | None = None


def deduplicate(
    corpus: Corpus,
    settings: DedupSettings,
    out: Path,
    *,
    workers: int | None = None,
    spark: SparkOptions | None = None,
    with_edges: bool = False,
    finish: Callable[[Path, DedupOutcome], None] = lambda _folder, _outcome: None,
    stage: Callable[[str], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> DedupOutcome:
    """Remove near-duplicates of ``corpus``, and write the new folder ``out`` with ``kept/`` and ``removed/``.

    ``finish`` adds further files to it. Until it is whole, the folder has a temporary name and temporary files (8 bytes
    per shingle). ``spark`` chooses that engine. ``workers``: threads of the local engine (default: one per core).
    ``with_edges``: keep the pairs above the threshold (24 bytes each). ``stage`` is called with the name of each stage,
    ``progress`` with the number of sketched documents.
    """
    if corpus.content != "text":
        raise InputError(
            f"data dedup: column {corpus.column!r} of {corpus.name} holds {corpus.content}; allowed: strings"
        )
    out = out.absolute()
    check_new(out)
    schema = schema_of(corpus)
    with new_folder(out) as folder:
        work = folder / _WORK
        try:
            for directory in (work, folder / KEPT, folder / REMOVED):
                directory.mkdir()
            job, master, edges = DedupJob.of(corpus, settings, schema, work, folder), None, None
            if spark is None:
                count = workers or len(os.sched_getaffinity(0))
                counts, edges = local.run(job, count, stage, progress)
            else:
                from trainer.data.corpus.dedup import spark as engine

                counts, _, master = engine.run(job, spark.master, spark.timeout_s, stage)
                edges = engine.edges(job) if with_edges else None
            check_parts(job)
        finally:
            remove(work)
        outcome = replace(_outcome(job, counts, master), edges=edges if with_edges else None)
        finish(folder, outcome)
    return outcome


def _outcome(job: DedupJob, counts: dict[str, int], master: str | None) -> DedupOutcome:
    removed, kept = removals_in(Path(job.out))
    result = DedupResult(
        corpus=job.corpus.name,
        fingerprint=job.corpus.fingerprint,
        engine="local" if master is None else "spark",
        documents=job.corpus.documents,
        without_shingles=counts["without_shingles"],
        identical=counts["identical"],
        candidates=counts["candidates"],
        verified=counts["verified"],
        crowded=counts["crowded"],
        removed=len(removed),
        groups=len(np.unique(kept)),
        rounds=counts.get("rounds"),
        master=master,
    )
    return DedupOutcome(result, removed, kept)


def removals_in(folder: Path) -> tuple[Integers, Integers]:
    """Return the rows of removed documents and of those kept instead, from ``removed/``. Raises InputError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    removed, kept = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for path in sorted((folder / REMOVED).glob("part-*.parquet")):
        try:
            table = pq.read_table(path, columns=list(COLUMNS[:2]))
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: cannot be read as a list of removed documents") from error
        removed.append(table.column(0).to_numpy())
        kept.append(table.column(1).to_numpy())
    return np.concatenate(removed), np.concatenate(kept)
