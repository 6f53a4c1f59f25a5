"""Precision and recall of the removals, against labels of ``labelled``, or clusters by id or row.

A document with an empty cluster is alone. One without a label is not counted, but may connect a group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.data import cache
from trainer.data.corpus import formats, jsonl, tables
from trainer.data.corpus.base import Corpus, first_line
from trainer.data.corpus.dedup.labelled import DUPLICATES
from trainer.data.corpus.dedup.pairs import Edges, components
from trainer.data.corpus.dedup.rows import LINE, rows_from, schema_of
from trainer.data.corpus.dedup.sketches import Integers
from trainer.errors import InputError, literal
from trainer.json_types import JsonObject

_COLUMNS = ["row", "kind", "origin_row", "jaccard"]
_STEPS = 20  # thresholds are multiples of 1 / 20
_TABLES = (".csv", ".tsv")
_ALLOWED = "a column cluster and one of id and row, in Parquet, Arrow, JSON Lines, .csv or .tsv"


@dataclass(frozen=True)
class KindCount:
    """Number of labelled documents of one kind, and of those in one group with their original."""

    kind: str
    documents: int
    grouped: int
    least_similarity: float


@dataclass(frozen=True)
class Quality:
    """Removals compared with the labels of ``labelled``. A group is a kept document and the documents removed for it.

    ``labelled``: labelled near-duplicates; ``found``: number of these in one group with their original. ``removed``:
    removed documents; ``right``: number of these whose kept document has the same original. ``pair_precision``: share
    (0 to 1) of the pairs within a group that have one original; ``pair_recall``: share of the pairs with one original
    that are within a group. Both are None if there are no such pairs.
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
    """Labels of ``labelled`` for each row: its kind, the row of its original and their similarity."""

    kinds: np.ndarray[tuple[int], np.dtype[np.str_]]
    origins: Integers
    similarities: np.ndarray[tuple[int], np.dtype[np.float64]]

    @property
    def clusters(self) -> Clusters:
        """Labels in another form: the cluster of each row, which consists of an original and its near-duplicates."""
        rows = np.arange(len(self.origins))
        return Clusters(np.where(np.isin(self.kinds, DUPLICATES), self.origins, rows))


def read_labels(path: Path, corpus: Corpus) -> Labels | Clusters:
    """Read Labels (of ``labelled``) or Clusters (of any other file). Raises InputError for those of another corpus."""
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
    """Return True if the labels come from ``labelled``: Parquet with its columns and the digest of its corpus."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    return set(_COLUMNS) <= set(schema.names) and b"corpus_sha256" in (schema.metadata or {})


def quality_of(labels: Labels, removed: Integers, kept: Integers) -> Quality:
    """Compare the removals with the labels. ``removed``, ``kept``: rows removed, and the row kept instead of each."""
    count = len(labels.origins)
    group = np.arange(count)
    group[removed] = kept
    duplicate = np.isin(labels.kinds, DUPLICATES)
    true = np.where(duplicate, labels.origins, np.arange(count))
    is_grouped = group == group[labels.origins]
    kinds = []
    for kind in sorted(set(labels.kinds.tolist())):
        of_kind = labels.kinds == kind
        grouped = int((is_grouped & of_kind & (labels.origins != np.arange(count))).sum())
        kinds.append(KindCount(kind, int(of_kind.sum()), grouped, float(labels.similarities[of_kind].min())))
    shared_pairs = pairs_of(true * count + group)
    grouped_pairs, labelled_pairs = pairs_of(group), pairs_of(true)
    return Quality(
        labelled=int(duplicate.sum()),
        found=int((duplicate & is_grouped).sum()),
        removed=len(removed),
        right=int((true[removed] == true[kept]).sum()),
        pair_precision=shared_pairs / grouped_pairs if grouped_pairs else None,
        pair_recall=shared_pairs / labelled_pairs if labelled_pairs else None,
        kinds=tuple(kinds),
    )


@dataclass(frozen=True)
class Clusters:
    """Cluster of each row by number (-1: no label). ``unknown``: number of labels whose id no row has."""

    of: Integers
    unknown: int = 0


@dataclass(frozen=True)
class AtThreshold:
    """Groups of pairs of at least ``threshold`` against labelled clusters.

    ``found``: pairs of labelled documents within a group; ``right``: of these, pairs within a cluster. ``precision``:
    right / found; ``recall``: right / all pairs within a cluster; None if the divisor is 0.
    """

    threshold: float
    removed: int
    found: int
    right: int
    precision: float | None
    recall: float | None


@dataclass(frozen=True)
class ClusterQuality:
    """Groups against labelled clusters. ``unknown``: labels without document. ``pairs``: within ``clusters`` of two."""

    labelled: int
    unlabelled: int
    unknown: int
    clusters: int
    pairs: int
    at: tuple[AtThreshold, ...]


def read_clusters(path: Path, corpus: Corpus) -> Clusters:
    """Read clusters by ``row`` or ``id``. Raises InputError for a file that is empty or contradicts the corpus."""
    key = f"--labels {path}"
    rows = _labels(path, key)
    if not rows:
        raise InputError(f"{key}: no labels; allowed: {_ALLOWED}")
    key_columns = [name for name in ("row", "id") if name in rows[0]]
    if len(key_columns) != 1 or "cluster" not in rows[0]:
        raise InputError(f"{key}: its columns are {', '.join(map(literal, rows[0]))}; allowed: {_ALLOWED}")
    places = _Rows(corpus, key) if key_columns == ["row"] else _Ids(corpus, key)
    cluster_of, unknown = np.full(corpus.documents, -1, np.int64), 0
    numbers: dict[str, int] = {}
    for row, label in enumerate(rows):
        place = places.of(label.get(key_columns[0]), row)
        if place is None:
            unknown += 1
            continue
        if cluster_of[place] >= 0:
            raise InputError(
                f"{key}, row {row} (from 0): a second label of {key_columns[0]} "
                f"{literal(label[key_columns[0]])}; give one"
            )
        cluster = label.get("cluster")
        name = f"alone {row}" if cluster in (None, "") else f"cluster {_text(cluster, key, row, 'cluster')}"
        cluster_of[place] = numbers.setdefault(name, len(numbers))
    if unknown == len(rows):
        raise InputError(f"{key}: no document of {corpus.name} has an id of its {unknown:,} labels")
    return Clusters(cluster_of, unknown)


def cluster_quality(clusters: Clusters, edges: Edges, threshold: float) -> ClusterQuality:
    """Compare the groups of ``edges`` of at least ``threshold``, then of each multiple of 0.05 above, to labels."""
    left, right, similarities = edges
    labelled = np.flatnonzero(clusters.of >= 0)
    truth = clusters.of[labelled]
    true_pairs = pairs_of(truth)
    steps = {threshold, *(step / _STEPS for step in range(1, _STEPS + 1) if step / _STEPS > threshold)}
    results = []
    for step in sorted(steps):
        is_similar = similarities >= step
        group = np.arange(len(clusters.of))
        removed = 0
        if is_similar.any():
            nodes, groups = components(left[is_similar], right[is_similar])
            group[nodes] = groups
            removed = len(nodes) - len(np.unique(groups))
        grouped, correct = pairs_of(group[labelled]), pairs_of(truth * len(group) + group[labelled])
        precision, recall = correct / grouped if grouped else None, correct / true_pairs if true_pairs else None
        results.append(AtThreshold(step, removed, grouped, correct, precision, recall))
    _, sizes = np.unique(truth, return_counts=True)
    return ClusterQuality(
        labelled=len(labelled),
        unlabelled=len(clusters.of) - len(labelled),
        unknown=clusters.unknown,
        clusters=int((sizes > 1).sum()),
        pairs=true_pairs,
        at=tuple(results),
    )


def pairs_of(values: Integers) -> int:
    """Return the number of pairs of positions with equal values."""
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
    return [row for batch in tables.batches(str(path), format) for row in batch.to_pylist()]


def _text(value: object, key: str, at: int, column: str) -> str:
    """Return the name of a cluster or an id as text, so that 7 equals "7". Raises InputError for any other type."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise InputError(f"{key}, row {at} (from 0): {column} is {literal(value)}; allowed: a string or a whole number")


class _Rows:
    """Finds the document of a label that gives its row in the corpus, counted from 0."""

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
    """Finds the row of a label's document by the corpus' column ``id``. Raises InputError if an id occurs twice."""

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
