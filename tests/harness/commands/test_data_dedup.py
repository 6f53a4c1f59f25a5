"""``harness data dedup``: the page, the files, precision and recall, and what is wrong in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.commands import harness
from tests.trainer.data.corpus.corpora import jsonl, parquet


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dedup") / "made"
    done = harness("data", "dedup", "--make-labelled", "200", "--out", str(folder), "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"written to {folder}: corpus.parquet, labels.parquet"
    assert f"next: harness data dedup --corpus {folder}/corpus.parquet --labels {folder}/labels.parquet" in done.stdout
    return folder


def test_a_labelled_corpus_with_precision_recall_s_curve_and_files(made: Path, tmp_path: Path) -> None:
    words = ("data", "dedup", "--corpus", str(made / "corpus.parquet"), "--labels", str(made / "labels.parquet"))
    done = harness(*words, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "removing near-duplicates from corpus.parquet: 200 documents\n"
    assert done.stdout.startswith("# Near-duplicates in `corpus.parquet`\n\n")
    assert "one of 21 bands of 6 rows (126 permutations, seed 0)" in done.stdout
    assert "| 0.8 (threshold) | 99.83 % |" in done.stdout
    assert f"written to {tmp_path}/out: kept/, removed/, dedup.md, dedup.json, s-curve.png" in done.stdout
    names = ["dedup.json", "dedup.md", "kept", "removed", "s-curve-narrow.svg", "s-curve.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert (tmp_path / "out" / "s-curve.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "dedup.md").read_text()
    assert '<img src="s-curve.png"' in page
    found = json.loads((tmp_path / "out" / "dedup.json").read_text())
    assert found["precision"] >= 0.99
    assert found["recall"] >= 0.99
    assert found["settings"]["banding"] == {"bands": 21, "rows": 6}
    assert dict(map(tuple, found["s_curve"]))[1.0] == 1.0
    kept = pq.read_table(tmp_path / "out" / "kept")
    assert kept.num_rows == 200 - found["result"]["removed"]
    assert kept.schema.names == ["id", "text", "length"]
    printed = harness(*words, "--out", str(tmp_path / "again"), "--json", "--workers", "1")
    assert json.loads(printed.stdout) == found


def test_characters_and_bands_of_ones_own(tmp_path: Path) -> None:
    texts = ["an almost equal text stands here", "an almost equal text stands here!", "nothing of it"]
    path = str(jsonl(tmp_path, texts))
    done = harness(
        "data", "dedup", "--corpus", path, "--out", str(tmp_path / "out"), "--shingles", "char", "--bands", "20",
        "--rows", "1", "--threshold", "0.9",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 of 3 documents (33 %) are removed" in done.stdout
    assert "A shingle is each run of 9 characters" in done.stdout
    assert "20 bands of 1 row (20 permutations" in done.stdout
    removed = pq.read_table(tmp_path / "out" / "removed").to_pylist()
    assert removed == [
        {"removed_row": 0, "kept_row": 1, "jaccard": 0.96, "neighbour_row": 1, "neighbour_jaccard": 0.96}
    ]


def test_nothing_like_another_keeps_all(tmp_path: Path) -> None:
    done = harness(
        "data", "dedup", "--corpus", str(parquet(tmp_path, ["one document alone"])), "--out", str(tmp_path / "out")
    )
    assert "No near-duplicates were found in 1 document; it is kept." in done.stdout
    assert pq.read_table(tmp_path / "out" / "kept").num_rows == 1
    assert pq.read_table(tmp_path / "out" / "removed").num_rows == 0


CASES = {
    (): "data dedup: give --out DIR",
    ("--out", "new"): "data dedup: give --corpus, or --make-labelled N",
    ("--threshold", "1"): "--threshold 1: allowed: more than 0, less than 1",
    ("--threshold", "nan"): "--threshold nan: allowed: more than 0, less than 1",
    ("--threshold", "0.1", "--permutations", "16"): (
        "--threshold 0.1 with --permutations 16: 16 bands of one row would find 81.5% of the pairs at the threshold, "
        "and 99% are asked for; give at least 44"
    ),
    ("--permutations", "0"): "--permutations 0: allowed: 1 to 4,096",
    ("--bands", "3"): "--bands and --rows: give both, or --permutations",
    ("--bands", "3", "--rows", "0"): "--bands 3 --rows 0: allowed: each at least 1, and bands x rows at most 4,096",
    ("--bands", "3", "--rows", "2", "--permutations", "6"): (
        "--permutations: cannot be combined with --bands and --rows (there are bands x rows)"
    ),
    ("--shingle-size", "0"): "--shingle-size 0: allowed: 1 to 64",
    ("--out", "s3://bucket/new"): (
        "--out s3://bucket/new: a URL; allowed: a folder of this machine; --upload s3://bucket/new copies it there"
    ),
    ("--labels", "absent"): "--labels absent: no such file",
    ("--master", "local"): "--master: cannot be combined with --engine local",
    ("--engine", "spark", "--workers", "2"): "--workers: cannot be combined with --engine spark",
    ("--workers", "0"): "--workers 0: allowed: 1 to 256",
    ("--seed", str(2**63)): f"--seed {2**63}: allowed: whole numbers of 64 bits",
    ("--make-labelled", "1", "--out", "new"): "--make-labelled 1: allowed: 2 to 100,000,000 documents",
    ("--make-labelled", "5"): "--corpus: cannot be combined with --make-labelled",
    ("--make-labelled", "5", "--out", "new", "--bands", "7"): "--bands: cannot be combined with --make-labelled",
}


@pytest.mark.parametrize("options", CASES, ids=" ".join)
def test_what_is_wrong_is_one_line(options: tuple[str, ...], tmp_path: Path) -> None:
    bare = not options or "new" in options
    words = () if bare else ("--corpus", str(parquet(tmp_path, ["a text"])), "--out", str(tmp_path / "new"))
    done = harness("data", "dedup", *words, *options)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"harness: {CASES[options]}\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("texts", "line"), [([], "no documents"), (["", ""], "2 documents, all of them empty")])
def test_an_empty_corpus_is_one_line(texts: list[str], line: str, tmp_path: Path) -> None:
    import pyarrow as pa

    path = parquet(tmp_path, texts, pa.string())
    done = harness("data", "dedup", "--corpus", str(path), "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"harness: data.corpus.path: empty corpus: {line} in column 'text' of {path}\n"


def test_a_result_is_not_written_over(tmp_path: Path) -> None:
    path = str(parquet(tmp_path, ["a text"]))
    done = harness("data", "dedup", "--corpus", path, "--out", str(tmp_path))
    line = f"harness: --out {tmp_path}: is there already; give a folder that is not, or an empty one\n"
    assert (done.returncode, done.stderr) == (2, line)
