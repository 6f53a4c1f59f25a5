"""Precision and recall of what was removed, against the labels of a corpus that ``labelled`` made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.data import cache
from trainer.data.corpus.base import Corpus
from trainer.data.corpus.dedup.clusters import Clusters, pairs_of, read_clusters
from trainer.data.corpus.dedup.labelled import DUPLICATES
from trainer.data.corpus.dedup.sketches import Integers
from trainer.errors import InputError

_COLUMNS = ["row", "kind", "origin_row", "jaccard"]


@dataclass(frozen=True)
class KindCount:
    """Documents of a kind: how many there are, and how many were found in one group with their original."""

    kind: str
    documents: int
    grouped: int
    least_similarity: float


@dataclass(frozen=True)
class Quality:
    """Of documents: a labelled near-duplicate is found where it is in one group with its original.

    A removal is right where the document that is kept instead has the same original. ``precision`` and ``recall`` of
    pairs count all pairs of documents with one label against all pairs within one group.
    """

    labelled: int
    found: int
    removed: int
    right: int
    pair_precision: float | None
    pair_recall: float | None
    kinds: tuple[KindCount, ...]

    @property
    def recall(self) -> float | None:
        return self.found / self.labelled if self.labelled else None

    @property
    def precision(self) -> float | None:
        return self.right / self.removed if self.removed else None


@dataclass(frozen=True)
class Labels:
    """Of each row: its kind, the row of its original and their similarity."""

    kinds: np.ndarray[tuple[int], np.dtype[np.str_]]
    origins: Integers
    similarities: np.ndarray[tuple[int], np.dtype[np.float64]]

    @property
    def clusters(self) -> Clusters:
        """Return an original and its near-duplicates as one cluster."""
        rows = np.arange(len(self.origins))
        return Clusters(np.where(np.isin(self.kinds, DUPLICATES), self.origins, rows))


def read_labels(path: Path, corpus: Corpus) -> Labels | Clusters:
    """Read what ``labelled`` wrote, or clusters of any origin. Raises InputError for labels of another corpus."""
    if not _is_own(path):
        return read_clusters(path, corpus)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise InputError(f"--labels {path}: no such file") from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"--labels {path}: cannot be read as Parquet") from error
    digest = (table.schema.metadata or {}).get(b"corpus_sha256", b"").decode(errors="replace")
    if len(corpus.files) != 1 or "://" in corpus.files[0] or cache.file_digest(Path(corpus.files[0])) != digest:
        raise InputError(f"--labels {path}: of another corpus than {corpus.name}, or that was changed since")
    return Labels(
        np.array(table.column("kind").to_pylist()),
        table.column("origin_row").to_numpy(),
        table.column("jaccard").to_numpy(),
    )


def _is_own(path: Path) -> bool:
    """Return True for a Parquet file with the columns of ``labelled``, and the digest of its corpus."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    return set(_COLUMNS) <= set(schema.names) and b"corpus_sha256" in (schema.metadata or {})


def quality_of(labels: Labels, removed: Integers, kept: Integers) -> Quality:
    """Compare what was removed, and what was kept instead, with the labels."""
    count = len(labels.origins)
    group = np.arange(count)
    group[removed] = kept
    duplicate = np.isin(labels.kinds, DUPLICATES)
    true = np.where(duplicate, labels.origins, np.arange(count))
    together = group == group[labels.origins]
    kinds = []
    for kind in sorted(set(labels.kinds.tolist())):
        of = labels.kinds == kind
        grouped = int((together & of & (labels.origins != np.arange(count))).sum())
        kinds.append(KindCount(kind, int(of.sum()), grouped, float(labels.similarities[of].min())))
    both = pairs_of(true * count + group)
    found, wanted = pairs_of(group), pairs_of(true)
    return Quality(
        labelled=int(duplicate.sum()),
        found=int((duplicate & together).sum()),
        removed=len(removed),
        right=int((true[removed] == true[kept]).sum()),
        pair_precision=both / found if found else None,
        pair_recall=both / wanted if wanted else None,
        kinds=tuple(kinds),
    )
