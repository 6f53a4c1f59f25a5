"""Labels of any origin: precision and recall by threshold are those that plain Python counts."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands import harness
from tests.trainer.data.corpus.corpora import jsonl, parquet, texts_in_files
from tests.trainer.refusals import refusal
from trainer.config import CorpusConfig
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.corpus.dedup.quality import Clusters, cluster_quality, read_labels
from trainer.errors import InputError

Rows = list[dict[str, Any]]


def _csv(path: Path, rows: Rows, delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def _lines(path: Path, rows: Rows) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _parquet(path: Path, rows: Rows) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _arrow(path: Path, rows: Rows) -> Path:
    table = pa.Table.from_pylist(rows)
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return path


WRITERS: dict[str, Callable[[Path, Rows], Path]] = {
    "csv": _csv,
    "tsv": lambda path, rows: _csv(path, rows, "\t"),
    "jsonl": _lines,
    "parquet": _parquet,
    "arrow": _arrow,
}


def clusters(path: Path, corpus: Corpus) -> Clusters:
    found = read_labels(path, corpus)
    assert isinstance(found, Clusters)
    return found


def corpus_of(path: Path) -> Corpus:
    return prepare_corpus(CorpusConfig(path=str(path)))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("make", [jsonl, parquet])
@pytest.mark.parametrize("by", ["id", "row"])
def test_labels_are_read_by_id_or_row_whatever_their_format(name, make, by, tmp_path) -> None:
    """Rows are in another order; one document has no label; an empty cluster is none."""
    (tmp_path / "corpus").mkdir()
    corpus = corpus_of(make(tmp_path / "corpus", [f"text {number}" for number in range(6)]))
    rows = [(5, "b"), (0, "a"), (3, "b"), (2, None), (1, None)]
    path = WRITERS[name](tmp_path / f"labels.{name}", [{"cluster": cluster, by: number} for number, cluster in rows])
    found = clusters(path, corpus)
    of = found.of.tolist()
    assert of[4] == -1
    assert of[5] == of[3]
    assert len({of[0], of[1], of[2], of[3]}) == 4
    assert found.unknown == 0


def test_ids_that_look_like_numbers_stay_what_they_are(tmp_path: Path) -> None:
    rows = [{"id": one, "text": f"text {one}"} for one in ("007", "7", 18446744073709551557, "é")]
    corpus = corpus_of(_lines(tmp_path / "corpus.jsonl", rows))
    labels = [("7", "x"), ("007", "y"), ("18446744073709551557", "x"), ("é", "y"), ("absent", "x")]
    for name in ("csv", "jsonl"):
        path = WRITERS[name](tmp_path / f"labels.{name}", [{"id": one, "cluster": cluster} for one, cluster in labels])
        found = clusters(path, corpus)
        assert found.of.tolist() == [1, 0, 0, 1]
        assert found.unknown == 1


def test_a_cluster_may_be_called_na(tmp_path: Path) -> None:
    """Only an empty field of a CSV file has no cluster."""
    corpus = corpus_of(jsonl(tmp_path, [f"text {number}" for number in range(4)]))
    rows = [{"row": number, "cluster": name} for number, name in enumerate(("NA", "NA", "null", None))]
    assert clusters(_csv(tmp_path / "labels.csv", rows), corpus).of.tolist()[:2] == [0, 0]


@given(
    edges=st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, 11), st.sampled_from([0.7, 0.75, 0.8, 0.875, 1.0])).filter(
            lambda one: one[0] < one[1]
        ),
        unique_by=lambda one: one[:2],
    ),
    of=st.lists(st.integers(-1, 4), min_size=12, max_size=12),
)
def test_precision_and_recall_are_those_of_plain_python(edges: list[tuple[int, int, float]], of: list[int]) -> None:
    columns = [np.array([edge[side] for edge in edges], kind) for side, kind in ((0, int), (1, int), (2, float))]
    found = cluster_quality(Clusters(np.array(of)), (columns[0], columns[1], columns[2]), 0.7)
    assert [one.threshold for one in found.at] == [0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0]
    labelled = [row for row in range(12) if of[row] >= 0]
    for one in found.at:
        group = list(range(12))
        for _ in range(12):  # the least row that can be reached
            for left, right, similarity in edges:
                if similarity >= one.threshold:
                    group[left] = group[right] = min(group[left], group[right])
        pairs = list(combinations(labelled, 2))
        together = [pair for pair in pairs if group[pair[0]] == group[pair[1]]]
        true = [pair for pair in pairs if of[pair[0]] == of[pair[1]]]
        both = [pair for pair in together if pair in true]
        assert (one.found, one.right, found.pairs) == (len(together), len(both), len(true))
        assert one.precision == (len(both) / len(together) if together else None)
        assert one.recall == (len(both) / len(true) if true else None)
        assert one.removed == 12 - len(set(group))
    assert (found.labelled, found.unlabelled) == (len(labelled), 12 - len(labelled))


def test_copies_in_another_unicode_form_are_found_and_counted(tmp_path: Path) -> None:
    """20 texts and their copies with letters taken apart; the labels are those of somebody else."""
    texts = [f"café numéro {number} était très élégant à Orléans en été, voilà l'été {number}" for number in range(20)]
    corpus = jsonl(tmp_path, [*texts, *(unicodedata.normalize("NFD", text) for text in texts)])
    labels = _csv(tmp_path / "labels.csv", [{"id": row, "cluster": f"c{row % 20}"} for row in range(40)])
    words = ("data", "dedup", "--corpus", str(corpus), "--labels", str(labels), "--json", "--threshold", "0.9")
    for options, recall in (((), 1.0), (("--unicode", "none"), 0.0), (("--case", "keep"), 1.0)):
        done = harness(*words, *options, "--out", str(tmp_path / f"out-{'-'.join(options)}"))
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["recall"] == recall
        assert found["result"]["removed"] == (20 if recall else 0)
        assert [one["threshold"] for one in found["clusters"]["at"]] == [0.9, 0.95, 1.0]
        assert found["clusters"]["pairs"] == 20
        assert found["quality"] is None


def test_the_made_corpus_has_a_table_by_threshold_too(tmp_path: Path) -> None:
    assert harness("data", "dedup", "--make-labelled", "200", "--out", str(tmp_path / "made")).returncode == 0
    words = ("data", "dedup", "--corpus", f"{tmp_path}/made/corpus.parquet")
    done = harness(*words, "--labels", f"{tmp_path}/made/labels.parquet", "--out", str(tmp_path / "out"), "--json")
    found = json.loads(done.stdout)
    at = found["clusters"]["at"]
    assert (at[0]["precision"], at[0]["recall"]) == (
        found["quality"]["pair_precision"],
        found["quality"]["pair_recall"],
    )
    assert at[0]["removed"] == found["result"]["removed"]
    recalls = [one["recall"] for one in at]
    assert recalls == sorted(recalls, reverse=True)
    assert recalls[-1] < recalls[0]


@pytest.mark.parametrize(("rows", "line"), [
    ([{"id": 0, "row": 0, "cluster": "a"}], "its columns are 'id', 'row', 'cluster'; allowed: a column"),
    ([{"id": 0, "group": "a"}], "its columns are 'id', 'group'; allowed: a column cluster"),
    ([{"row": 3, "cluster": "a"}], "row 0 (from 0): row 3 is none of the corpus; allowed: 0 to 2"),
    ([{"row": -1, "cluster": "a"}], "row 0 (from 0): row -1 is none of the corpus"),
    ([{"row": 1.5, "cluster": "a"}], "row 0 (from 0): row is 1.5; allowed: a string or a whole number"),
    ([{"row": 1, "cluster": [1]}], "row 0 (from 0): cluster is [1]; allowed"),
    ([{"row": 1, "cluster": "a"}, {"row": 1, "cluster": "b"}], "row 1 (from 0): a second label of row 1; give one"),
    ([{"id": "no", "cluster": "a"}], "no document of data.jsonl has an id of its 1 labels"),
])  # fmt: skip
def test_labels_that_are_none_are_one_line(rows: Rows, line: str, tmp_path: Path) -> None:
    corpus = corpus_of(jsonl(tmp_path, ["a", "b", "c"]))
    path = _lines(tmp_path / "labels.jsonl", rows)
    said = refusal(read_labels, path, corpus)
    assert said.startswith(f"--labels {path}")
    assert line in said


def test_a_corpus_without_ids_is_labelled_by_row(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    corpus = corpus_of(texts_in_files(tmp_path / "texts", ["a", "b"]))
    path = _lines(tmp_path / "labels.jsonl", [{"id": 0, "cluster": "a"}])
    with pytest.raises(InputError, match="has no column id; label by row"):
        read_labels(path, corpus)
    twice = corpus_of(_lines(tmp_path / "twice.jsonl", [{"id": 1, "text": "a"}, {"id": "1", "text": "b"}]))
    with pytest.raises(InputError, match=r"two documents of twice\.jsonl have the id '1'; label by row"):
        read_labels(path, twice)
    for name in ("labels.txt", "labels.csv"):
        (tmp_path / name).write_bytes(b'"no table\n\xff')
        with pytest.raises(InputError, match="--labels"):
            read_labels(tmp_path / name, corpus)
