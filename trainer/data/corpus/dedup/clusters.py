"""Precision and recall by threshold, against labels that give the cluster of each document by id or row.

Documents of one cluster are near-duplicates of each other. A document with an empty cluster is a cluster by itself. A
document without a label is not counted, but it may connect the documents of a group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.data.corpus import arrow, formats, jsonl, parquet
from trainer.data.corpus.base import Corpus, first_line
from trainer.data.corpus.dedup.components import components
from trainer.data.corpus.dedup.local import Edges
from trainer.data.corpus.dedup.sketches import Integers
from trainer.data.corpus.dedup.whole_rows import LINE, rows_from, schema_of
from trainer.errors import InputError, literal
from trainer.json_types import JsonObject

_STEPS = 20  # thresholds are multiples of 1 / 20
_TABLES = (".csv", ".tsv")
_ALLOWED = "a column cluster and one of id and row, in Parquet, Arrow, JSON Lines, .csv or .tsv"


@dataclass(frozen=True)
class Clusters:
    """Number of the cluster of each row of the corpus; -1 for a row without a label.

    ``unknown``: number of labels whose id no document of the corpus has.
    """

    of: Integers
    unknown: int = 0


@dataclass(frozen=True)
class AtThreshold:
    """Result of removing near-duplicates at a similarity of ``threshold``, measured by pairs of labelled documents.

    ``removed``: documents. ``found``: pairs within one group. ``right``: pairs of these that are within one cluster.
    """

    threshold: float
    removed: int
    found: int
    right: int
    precision: float | None
    recall: float | None


@dataclass(frozen=True)
class ClusterQuality:
    """Numbers of documents with and without a label, of clusters of several documents, and of pairs within a cluster.

    ``unknown``: labels whose id no document of the corpus has. ``at``: the result at each threshold.
    """

    labelled: int
    unlabelled: int
    unknown: int
    clusters: int
    pairs: int
    at: tuple[AtThreshold, ...]


def read_clusters(path: Path, corpus: Corpus) -> Clusters:
    """Read labels. Raises InputError where they are none, or contradict each other or the corpus."""
    key = f"--labels {path}"
    rows = _labels(path, key)
    if not rows:
        raise InputError(f"{key}: no labels; allowed: {_ALLOWED}")
    by = [name for name in ("row", "id") if name in rows[0]]
    if len(by) != 1 or "cluster" not in rows[0]:
        raise InputError(f"{key}: its columns are {', '.join(map(literal, rows[0]))}; allowed: {_ALLOWED}")
    places = _Rows(corpus, key) if by == ["row"] else _Ids(corpus, key)
    of, unknown = np.full(corpus.documents, -1, np.int64), 0
    numbers: dict[str, int] = {}
    for at, label in enumerate(rows):
        place = places.of(label.get(by[0]), at)
        if place is None:
            unknown += 1
            continue
        if of[place] >= 0:
            raise InputError(f"{key}, row {at} (from 0): a second label of {by[0]} {literal(label[by[0]])}; give one")
        cluster = label.get("cluster")
        name = f"alone {at}" if cluster in (None, "") else f"cluster {_text(cluster, key, at, 'cluster')}"
        of[place] = numbers.setdefault(name, len(numbers))
    if unknown == len(rows):
        raise InputError(f"{key}: no document of {corpus.name} has an id of its {unknown:,} labels")
    return Clusters(of, unknown)


def cluster_quality(clusters: Clusters, edges: Edges, threshold: float) -> ClusterQuality:
    """Count at the threshold and at every twentieth above it, by groups that hang together by similar pairs."""
    left, right, similarities = edges
    labelled = np.flatnonzero(clusters.of >= 0)
    truth = clusters.of[labelled]
    wanted = pairs_of(truth)
    steps = {threshold, *(step / _STEPS for step in range(1, _STEPS + 1) if step / _STEPS > threshold)}
    at = []
    for one in sorted(steps):
        enough = similarities >= one
        group = np.arange(len(clusters.of))
        removed = 0
        if enough.any():
            nodes, groups = components(left[enough], right[enough])
            group[nodes] = groups
            removed = len(nodes) - len(np.unique(groups))
        found, right_ones = pairs_of(group[labelled]), pairs_of(truth * len(group) + group[labelled])
        precision, recall = right_ones / found if found else None, right_ones / wanted if wanted else None
        at.append(AtThreshold(one, removed, found, right_ones, precision, recall))
    _, sizes = np.unique(truth, return_counts=True)
    return ClusterQuality(
        labelled=len(labelled),
        unlabelled=len(clusters.of) - len(labelled),
        unknown=clusters.unknown,
        clusters=int((sizes > 1).sum()),
        pairs=wanted,
        at=tuple(at),
    )


def pairs_of(values: Integers) -> int:
    """Return how many pairs of equal values there are."""
    _, sizes = np.unique(values, return_counts=True)
    return int((sizes * (sizes - 1) // 2).sum())


def _labels(path: Path, key: str) -> Sequence[JsonObject]:
    import pyarrow as pa
    import pyarrow.csv as pc

    if not path.is_file():
        raise InputError(f"{key}: no such file")
    if path.suffix.lower() in _TABLES:
        try:
            parsing = pc.ParseOptions(delimiter="," if path.suffix.lower() == ".csv" else "\t")
            with pc.open_csv(path, parse_options=parsing) as first:
                strings = {name: pa.string() for name in first.schema.names}  # An id such as 007 is a string.
            options = pc.ConvertOptions(column_types=strings, null_values=[""], strings_can_be_null=True)
            rows: list[JsonObject] = pc.read_csv(path, parse_options=parsing, convert_options=options).to_pylist()
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise InputError(f"{key}: cannot be read as {path.suffix.lower()} ({first_line(error)})") from error
        return rows
    format = formats.format_of(str(path))
    if format == "jsonl":
        return [row for _, row in jsonl.objects(str(path))]
    if format == "text":
        raise InputError(f"{key}: is text; allowed: {_ALLOWED}")
    if format == "arrow":
        return [row for batch in arrow.batches(str(path)) for row in batch.to_pylist()]
    return [row for table in parquet.tables(str(path), 0) for row in table.to_pylist()]


def _text(value: object, key: str, at: int, column: str) -> str:
    """Return the name of a cluster or an id as text, so that 7 equals "7"."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise InputError(f"{key}, row {at} (from 0): {column} is {literal(value)}; allowed: a string or a whole number")


class _Rows:
    """Finds documents by their row in the corpus, from 0."""

    def __init__(self, corpus: Corpus, key: str) -> None:
        self._documents, self._key = corpus.documents, key

    def of(self, value: object, at: int) -> int | None:
        text = _text(value, self._key, at, "row")
        row = int(text) if text.isdecimal() and len(text) < 20 else -1
        if not 0 <= row < self._documents:
            raise InputError(
                f"{self._key}, row {at} (from 0): row {text[:40]} is none of the corpus; allowed: 0 to "
                f"{self._documents - 1:,}"
            )
        return row


class _Ids:
    """Finds documents by the corpus' own column ``id``."""

    def __init__(self, corpus: Corpus, key: str) -> None:
        self._key = key
        self._rows: dict[str, int] = {}
        for row, value in enumerate(_ids(corpus, key)):
            text = _text(value, f"{corpus.name}, for {key}", row, "id")
            if self._rows.setdefault(text, row) != row:
                raise InputError(f"{key}: two documents of {corpus.name} have the id {literal(value)}; label by row")

    def of(self, value: object, at: int) -> int | None:
        return self._rows.get(_text(value, self._key, at, "id"))


def _ids(corpus: Corpus, key: str) -> Iterator[object]:
    for table in rows_from(corpus, schema_of(corpus), 0, corpus.documents):
        if corpus.format == "jsonl":
            yield from (json.loads(line).get("id") for line in table.column(LINE).to_pylist())
        elif "id" in table.column_names:
            yield from table.column("id").to_pylist()
        else:
            raise InputError(f"{key}: labels by id, and {corpus.name} has no column id; label by row")
