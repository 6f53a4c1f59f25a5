"""Near-duplicates are found by their shingles, as a comparison of all pairs by plain Python finds them."""

from __future__ import annotations

import json
import math
import resource
import unicodedata
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.trainer.data.corpus.corpora import WRITERS, jsonl, parquet
from trainer.config import CorpusConfig
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.corpus.dedup import pairs, shingles, sketches
from trainer.data.corpus.dedup.labelled import DUPLICATES, labelled, write_labelled
from trainer.data.corpus.dedup.pairs import components, removals
from trainer.data.corpus.dedup.quality import Labels, quality_of, read_labels
from trainer.data.corpus.dedup.run import DedupOutcome, deduplicate
from trainer.data.corpus.dedup.shingles import Shingler, ShingleSets, Shingling
from trainer.data.corpus.dedup.sketches import Banding, DedupSettings, MinHash, banding_for, digests, given_banding
from trainer.data.corpus.text import blocks
from trainer.errors import InputError

SETTINGS = DedupSettings(Shingling("word", 3), 0.8, banding_for(0.8))


def plain_shingles(text: str, kind: str, size: int) -> set[tuple[str, ...]]:
    """By plain Python."""
    units = text.lower().split()
    parts = units if kind == "word" else list(" ".join(units))
    if len(parts) < size:
        return {tuple(parts)} if parts else set()
    return {tuple(parts[at : at + size]) for at in range(len(parts) - size + 1)}


def sets_of(texts: list[str], kind: str = "word", size: int = 3) -> list[np.ndarray]:
    sets = Shingler(Shingling(kind, size)).sets(texts)  # type: ignore[arg-type]
    return np.split(sets.hashes, np.cumsum(sets.lengths)[:-1])


TEXTS = st.lists(st.text("aAbBΣ .\n\u00a0é", max_size=40), max_size=12)


@given(TEXTS, st.sampled_from(["word", "char"]), st.integers(1, 4))
def test_sets_and_similarities_are_those_of_plain_python(texts: list[str], kind: str, size: int) -> None:
    found, plain = sets_of(texts, kind, size) if texts else [], [plain_shingles(one, kind, size) for one in texts]
    assert [len(one) for one in found] == [len(one) for one in plain]
    assert all((one[1:] > one[:-1]).all() for one in found)
    for one, first in zip(found, plain, strict=True):
        for other, second in zip(found, plain, strict=True):
            wanted = len(first & second) / len(first | second) if first | second else 0.0
            assert pairs.jaccard(one, other) == wanted
            enough = pairs.jaccard(one, other, 0.7)
            assert enough == wanted if wanted >= 0.7 else enough <= wanted


def test_a_pair_right_at_the_threshold_is_near_whatever_its_sizes() -> None:
    """0.55 x 100 is more than 55, and 0.28 x 25 more than 7: sizes do not rule out what is as similar as that."""
    for shared, size, threshold in ((55, 100, 0.55), (7, 25, 0.28), (14, 25, 0.56), (4, 5, 0.8)):
        whole = np.arange(size, dtype=np.uint64)
        assert pairs.jaccard(whole[:shared], whole, threshold) == threshold
        assert pairs.jaccard(whole[: shared - 1], whole, threshold) == 0


@pytest.mark.parametrize("kind", ["word", "char"])
def test_a_long_document_is_worked_on_in_pieces_and_has_the_same_shingles(kind, monkeypatch) -> None:
    text = " ".join(f"word{number % 37}  x{number % 11}" for number in range(400)) + "\n" + "unbroken" * 60
    texts = [text, "other words are here"]
    whole = sets_of(texts, kind)
    monkeypatch.setattr(shingles, "_PIECE", 50)
    monkeypatch.setattr(shingles, "_WHOLE", 20)
    monkeypatch.setattr(shingles, "_MERGED", 300)
    assert all((one == other).all() for one, other in zip(whole, sets_of(texts, kind), strict=True))


FORMS = {
    ("nfc", "lower"): {"composed", "decomposed", "capitals"},
    ("none", "lower"): {"composed", "capitals"},
    ("nfkc", "lower"): {"composed", "decomposed", "capitals", "ligature"},
    ("nfc", "fold"): {"composed", "decomposed", "capitals", "folded", "ligature"},
    ("nfc", "keep"): {"composed", "decomposed"},
    ("none", "keep"): {"composed"},
}


@pytest.mark.parametrize("options", FORMS, ids="-".join)
@pytest.mark.parametrize(("kind", "long"), [("word", False), ("char", False), ("word", True), ("char", True)])
def test_unicode_form_and_case_make_a_difference_where_they_are_asked_to(options, kind, long, monkeypatch) -> None:
    if long:
        monkeypatch.setattr(shingles, "_PIECE", 40)
        monkeypatch.setattr(shingles, "_WHOLE", 20)
    text = "straße ﬁne élan naïve Ångström façade première"
    variants = {
        "composed": text,
        "decomposed": unicodedata.normalize("NFD", text),
        "capitals": "straße ﬁne Élan NAÏVE ÅNGSTRÖM FAÇADE PREMIÈRE",
        "ligature": text.replace("ﬁ", "fi"),
        "folded": text.replace("ß", "SS"),
    }
    shingler = Shingler(Shingling(kind, 3, *options))  # type: ignore[arg-type]
    sets = shingler.sets(list(variants.values()))
    first, *others = np.split(sets.hashes, np.cumsum(sets.lengths)[:-1])
    equal = {name for name, one in zip(list(variants)[1:], others, strict=True) if np.array_equal(first, one)}
    assert equal | {"composed"} == FORMS[options]


def test_signatures_agree_as_often_as_sets_are_similar() -> None:
    """The S-curve holds: candidates by similarity, of sets of few and of many shingles. Fixed by the seed."""
    draws, banding, trials = np.random.default_rng(5), Banding(8, 4), 400
    minhash = MinHash(banding, 1)
    for size in (3, 20, 150):
        for similarity in (0.4, 0.7, 0.9):
            shared = math.ceil(2 * size * similarity / (1 + similarity))
            drawn = draws.integers(0, 2**64, (trials, 2 * size - shared), dtype=np.uint64)
            both = np.stack([np.sort(drawn[:, :size]), np.sort(drawn[:, size - shared :])], axis=1)
            keys = minhash.keys(ShingleSets(both.ravel(), np.full(2 * trials, size)))
            hits = (keys[::2] == keys[1::2]).any(axis=1)
            wanted = banding.probability(shared / (2 * size - shared))
            assert abs(np.mean(hits) - wanted) < 4 * math.sqrt(0.25 / trials), (size, similarity)


def test_no_more_pairs_at_the_threshold_are_missed_than_the_curve_says() -> None:
    """Of short documents, whose places depend on each other the most: 8 of 10 shingles shared. Fixed by the seed."""
    banding, trials = banding_for(0.8), 4000
    drawn = np.random.default_rng(1).integers(0, 2**64, (trials, 10), dtype=np.uint64)
    both = np.stack([np.sort(drawn[:, :9]), np.sort(drawn[:, 1:])], axis=1)
    keys = MinHash(banding, 0).keys(ShingleSets(both.ravel(), np.full(2 * trials, 9)))
    missed = trials - int((keys[::2] == keys[1::2]).any(axis=1).sum())
    wanted = trials * banding.missed(0.8)
    assert missed <= wanted + 3 * math.sqrt(wanted)
    assert math.isclose(banding.missed(0.8), 1 - banding.probability(0.8), rel_tol=1e-12)


def test_a_large_set_is_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = Shingler(Shingling("char", 4)).sets(["some text of a document that has more than a few shingles " * 2])
    minhash = MinHash(Banding(30, 4), 2)
    whole = minhash.keys(sets), digests(sets)
    monkeypatch.setattr("trainer.data.corpus.dedup.sketches._PART", 7)
    assert (minhash.keys(sets) == whole[0]).all()
    assert (digests(sets) == whole[1]).all()


def test_keys_and_digests_follow_from_sets_and_seed_alone() -> None:
    texts = [f"this is document {number} of some that are here" for number in range(20)] + ["a b"]
    sets = Shingler(Shingling("word", 3)).sets(texts)
    minhash = MinHash(banding_for(0.8), 7)
    for number, one in enumerate(np.split(sets.hashes, np.cumsum(sets.lengths)[:-1])):
        alone = ShingleSets(one, np.array([len(one)]))
        assert (minhash.keys(alone)[0] == minhash.keys(sets)[number]).all()
        assert (digests(alone)[0] == digests(sets)[number]).all()
    assert len({tuple(one) for one in digests(sets)}) == 21
    assert not (MinHash(banding_for(0.8), 8).keys(sets) == minhash.keys(sets)).any()
    # Pinned: another value means that results of two versions differ, and so may those of two machines.
    assert (minhash.keys(sets)[3, 5], minhash.keys(sets)[20, 0]) == PINNED
    empty = ShingleSets(np.empty(0, np.uint64), np.empty(0, np.int64))
    assert minhash.keys(empty).shape == (0, 21)
    assert digests(empty).shape == (0, 2)


PINNED = (14870634231910445212, 2416027434060940085)


@pytest.mark.parametrize("permutations", [16, 64, 128, 256])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 0.99])
def test_bands_and_rows_find_what_is_at_the_threshold(threshold: float, permutations: int) -> None:
    banding = banding_for(threshold, permutations)
    assert banding.permutations <= permutations
    assert banding.probability(threshold) >= 0.99
    steeper = Banding(permutations // (banding.rows + 1), banding.rows + 1) if banding.rows < permutations else None
    assert steeper is None or steeper.probability(threshold) < 0.99
    assert banding.probability(0) == 0
    assert banding.probability(1) == 1
    assert 0 < banding.steepest < 1


@pytest.mark.parametrize("threshold", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf])
def test_a_threshold_that_no_pair_or_every_pair_reaches_is_refused(threshold: float) -> None:
    with pytest.raises(InputError, match=r"^--threshold .*: allowed: more than 0, less than 1$"):
        banding_for(threshold)


def test_permutations_that_allow_no_banding_are_refused_with_how_many_would() -> None:
    with pytest.raises(InputError, match=r"16 bands of one row .* 81\.5% .*; give at least 44$"):
        banding_for(0.1, 16)
    assert banding_for(0.1, 44) == Banding(44, 1)
    with pytest.raises(InputError, match=r"no 4,096 would be enough$"):
        banding_for(0.0001)
    for bands, rows in ((0, 5), (5, -1), (4096, 2)):
        with pytest.raises(InputError, match=r"^--bands .*: allowed: each at least 1, and bands x rows at most 4,096$"):
            given_banding(bands, rows)
    assert given_banding(4, 5).permutations == 20


BUCKETS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), unique=True, max_size=80)


@given(BUCKETS, st.integers(1, 90), st.integers(1, 4))
def test_pairs_of_buckets_do_not_depend_on_batches(rows: list[tuple[int, int]], step: int, before: int) -> None:
    """Each with those before it in its bucket, up to a number; who has more before it is named."""
    rows.sort()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "BEFORE", before)
        columns = np.array([key for key, _ in rows], np.uint64), np.array([row for _, row in rows], np.int64)
        batches = [(columns[0][at : at + step], columns[1][at : at + step]) for at in range(0, len(rows), step)]
        found = list(pairs.bucket_pairs(batches))
    got = sorted((int(one), int(other)) for left, right in found for one, other in zip(left, right, strict=True))
    buckets: dict[int, list[int]] = defaultdict(list)
    wanted = []
    for key, row in rows:
        wanted += [(other, row) for other in buckets[key][-before:]]
        wanted += [(row, pairs.CROWDED)] * (len(buckets[key]) > before)
        buckets[key].append(row)
    assert got == sorted(wanted)


EDGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda one: one[0] < one[1]), unique=True)


@given(EDGES, st.lists(st.integers(1, 3), min_size=31, max_size=31))
def test_groups_are_those_of_a_search_and_the_longest_is_kept(edges: list[tuple[int, int]], sizes: list[int]) -> None:
    neighbours: dict[int, set[int]] = defaultdict(set)
    for one, other in edges:
        neighbours[one].add(other)
        neighbours[other].add(one)
    groups, seen = {}, set()
    for node in sorted(neighbours):
        reached, stack = set(), [node]
        while stack:
            if (one := stack.pop()) not in reached:
                reached.add(one)
                stack += neighbours[one]
        groups.update(dict.fromkeys(reached - seen, min(reached)))
        seen |= reached
    left, right = (np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))
    nodes, found = components(left, right)
    assert dict(zip(nodes.tolist(), found.tolist(), strict=True)) == groups
    similarities = np.array([0.8 + (one + other) % 3 / 10 for one, other in edges])
    gone = removals(left, right, similarities, np.array(sizes))
    kept = {}
    for node in sorted(groups, key=lambda one: (-sizes[one], one)):
        kept.setdefault(groups[node], node)
    assert dict(zip(gone.removed.tolist(), gone.kept.tolist(), strict=True)) == {
        node: kept[groups[node]] for node in groups if kept[groups[node]] != node
    }
    for node, neighbour, similarity in zip(gone.removed, gone.neighbours, gone.similarities, strict=True):
        around = [(-(0.8 + (node + other) % 3 / 10), other) for other in neighbours[int(node)]]
        assert (-similarity, neighbour) == pytest.approx(min(around))


def corpus_of(path: Path, **settings: object) -> Corpus:
    return prepare_corpus(CorpusConfig.model_validate({"path": str(path), **settings}))


def run(corpus: Corpus, out: Path, settings: DedupSettings = SETTINGS, workers: int = 1) -> DedupOutcome:
    return deduplicate(corpus, settings, out, workers=workers)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


def kept_rows(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted((out / "kept").iterdir()))


def kept_lines(out: Path) -> list[bytes]:
    """Of a corpus of JSON Lines."""
    paths = sorted((out / "kept").iterdir())
    return [line for path in paths for block in blocks(str(path)) for line in block.splitlines(keepends=True)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled corpus of 400 documents."""
    folder = tmp_path_factory.mktemp("labelled") / "made"
    write_labelled(folder, 400, 3)
    return folder


DEFAULTS = DedupSettings(Shingling(), 0.8, banding_for(0.8))


def test_precision_and_recall_on_labels_and_all_pairs_compared(made: Path, tmp_path: Path) -> None:
    corpus = corpus_of(made / "corpus.parquet")
    outcome = run(corpus, tmp_path / "out", DEFAULTS)
    labels = read_labels(made / "labels.parquet", corpus)
    assert isinstance(labels, Labels)
    quality = quality_of(labels, outcome.removed, outcome.kept)
    assert quality.recall >= 0.99
    assert quality.precision >= 0.99
    assert {one.kind for one in quality.kinds} >= {*DUPLICATES, "related", "page", "single", "original"}
    # Every pair that is similar enough, by sets of plain Python.
    texts = pq.read_table(made / "corpus.parquet").column("text").to_pylist()
    plain = [plain_shingles(text, "word", 5) for text in texts]
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, shingles_of in enumerate(plain):
        for shingle in shingles_of:
            holders[shingle].append(row)
    shared = Counter(pair for rows in holders.values() for pair in combinations(rows, 2))
    exact = {
        (one, other): common / (len(plain[one]) + len(plain[other]) - common) for (one, other), common in shared.items()
    }
    near = [pair for pair, similarity in exact.items() if similarity >= 0.8]
    _, groups = components(np.array([one for one, _ in near]), np.array([other for _, other in near]))
    assert outcome.result.groups == len(set(groups.tolist()))
    assert outcome.result.removed == len(groups) - outcome.result.groups
    rows = pq.read_table(tmp_path / "out" / "removed" / "part-000000.parquet").to_pylist()
    assert [row["removed_row"] for row in rows] == outcome.removed.tolist()
    for row in rows:
        for name, similarity in (("kept_row", "jaccard"), ("neighbour_row", "neighbour_jaccard")):
            assert exact[tuple(sorted((row["removed_row"], row[name])))] == row[similarity]
        assert row["neighbour_jaccard"] >= 0.8
        assert len(texts[row["kept_row"]]) >= len(texts[row["removed_row"]])


def test_labels_are_measured_and_follow_from_the_seed(tmp_path: Path) -> None:
    for folder in ("one", "again"):
        write_labelled(tmp_path / folder, 60, 4)
    for name in ("corpus.parquet", "labels.parquet"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    documents = list(labelled(60, 4))
    assert [one.text for one in documents] == pq.read_table(tmp_path / "one" / "corpus.parquet")["text"].to_pylist()
    assert [one.text for one in documents] != [one.text for one in labelled(60, 3)]
    plain = [plain_shingles(one.text, "word", 5) for one in documents]
    for one in documents:
        mine, origin = plain[one.row], plain[one.origin]
        assert one.similarity == len(mine & origin) / len(mine | origin)
        assert one.similarity >= 0.8 if one.kind in DUPLICATES or one.origin == one.row else one.similarity <= 0.75


def test_labels_of_another_corpus_are_refused(made: Path, tmp_path: Path) -> None:
    other = corpus_of(jsonl(tmp_path, ["some text"]))
    with pytest.raises(InputError, match=r"of another corpus than data\.jsonl"):
        read_labels(made / "labels.parquet", other)
    for path in (made / "corpus.parquet", tmp_path / "data.jsonl"):
        with pytest.raises(InputError, match=r"its columns are .*; allowed: a column cluster and one of id and row"):
            read_labels(path, other)


def test_the_result_does_not_depend_on_threads_shares_or_spills(made, tmp_path, monkeypatch) -> None:
    pq.write_table(pq.read_table(made / "corpus.parquet").slice(0, 160), tmp_path / "some.parquet")
    corpus = corpus_of(tmp_path / "some.parquet")
    first = run(corpus, tmp_path / "first", DEFAULTS)
    assert run(corpus, tmp_path / "threads", DEFAULTS, workers=3).result == first.result
    assert content(tmp_path / "threads") == content(tmp_path / "first")
    monkeypatch.setattr("trainer.data.shares.CORPUS_ROW_GROUP", 30)
    monkeypatch.setattr(sketches, "_SKETCH_SHARES", 7)
    monkeypatch.setattr("trainer.data.corpus.dedup.run._HELD_BYTES", 4000)
    monkeypatch.setattr("trainer.data.corpus.dedup.run._STEP", 90)
    assert run(corpus, tmp_path / "shares", DEFAULTS).result == first.result
    assert len(list((tmp_path / "shares" / "kept").iterdir())) == 6
    assert first.result.verified > 20
    assert kept_rows(tmp_path / "shares").equals(kept_rows(tmp_path / "first"))


DOCUMENTS = [
    "the quick brown fox jumps over the lazy dog today",
    "something else is written in this one here",
    "The quick brown fox  jumps over the lazy dog TODAY",
    "",
    "the quick brown fox jumps over the lazy dog today and",
    "short",
    "Short ",
]


@pytest.mark.parametrize("name", ["parquet", "jsonl", "jsonl.gz", "arrow file", "text files"])
def test_rows_are_kept_with_all_their_columns(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    outcome = run(corpus_of(WRITERS[name](tmp_path / "in", DOCUMENTS)), tmp_path / "out")
    (file,) = (tmp_path / "out" / "kept").iterdir()
    if name.startswith("jsonl"):
        lines = (tmp_path / "in" / "data.jsonl").read_bytes().splitlines(keepends=True)
        assert kept_lines(tmp_path / "out") == [lines[at] for at in (1, 3, 4, 6)]
        assert file.name == f"part-000000.jsonl{'.zst' * (name == 'jsonl.gz')}"
    else:
        found = kept_rows(tmp_path / "out")
        assert found.column("text").to_pylist() == [DOCUMENTS[row] for row in (1, 3, 4, 6)]
        assert name == "text files" or found.column("id").to_pylist() == [1, 3, 4, 6]
        assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "SNAPPY"
    assert corpus_of(file.parent).documents == 4
    assert (outcome.result.removed, outcome.result.groups, outcome.result.without_shingles) == (3, 2, 1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["kept", "removed"]


def test_files_of_several_schemas_are_one_table(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"text": ["one text is here", "another"], "n": pa.array([1, 2], pa.int32())}), tmp_path / "a.parquet"
    )
    pq.write_table(pa.table({"text": ["one text is here"], "n": [3], "new": ["x"]}), tmp_path / "b.parquet")
    run(corpus_of(tmp_path / "*.parquet"), tmp_path / "out")
    assert kept_rows(tmp_path / "out").to_pylist() == [
        {"text": "one text is here", "n": 1, "new": None},
        {"text": "another", "n": 2, "new": None},
    ]
    pq.write_table(pa.table({"text": ["more"], "n": ["a string"]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet: its columns are not those of the rows before"):
        run(corpus_of(tmp_path / "*.parquet"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_column_that_parquet_cannot_hold_is_one_line_before_any_work(tmp_path: Path) -> None:
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
    with pa.ipc.new_file(tmp_path / "data.arrow", pa.schema([("text", pa.string()), ("u", union.type)])) as writer:
        writer.write_table(pa.table({"text": ["a"], "u": union}))
    with pytest.raises(InputError, match=r"^data.arrow: a column cannot be written as Parquet \(.*dense_union"):
        run(corpus_of(tmp_path / "data.arrow"), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.arrow"]


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([18446744073709551557, 2**53 + 1, -(2**63) - 1, "2024-05-06", None, [1, 2.5], {"a": {}}, {}]),
)


@examples(30)
@given(values=st.lists(NUMBERS, min_size=1, max_size=8), mark=st.booleans(), ended=st.booleans())
def test_json_lines_are_kept_byte_by_byte(tmp_path_factory, values, mark, ended) -> None:
    """Whatever numbers there are, and whether or not a table could hold them: those kept are the lines that came in."""
    folder = tmp_path_factory.mktemp("lines")
    rows = [json.dumps({"text": f"text number {at // 2}", "id": value}).encode() for at, value in enumerate(values)]
    rows[0] = rows[0].replace(b", ", b" ,\t").replace(b"{", b"  {") + b"\r"
    content = b"\n \n".join(rows) + b"\n" * ended
    (folder / "data.jsonl").write_bytes(b"\xef\xbb\xbf" * mark + content)
    outcome = run(corpus_of(folder / "data.jsonl"), folder / "out")
    wanted = [row + b"\n" for at, row in enumerate(rows) if at not in outcome.removed.tolist()]
    assert len(wanted) == (len(values) + 1) // 2
    assert kept_lines(folder / "out") == wanted


@pytest.mark.parametrize(("kind", "value", "other", "fits"), [
    (pa.uint64(), 2**64 - 59, pa.uint64(), True),
    (pa.uint64(), 2**64 - 59, pa.int64(), False),
    (pa.uint64(), 2**64 - 59, pa.float64(), False),
    (pa.int64(), 2**53 + 1, pa.int32(), True),
    (pa.int64(), 2**53 + 1, pa.float64(), False),
    (pa.int64(), 2**53, pa.float64(), True),
])  # fmt: skip
def test_whole_numbers_of_tables_are_kept_or_refused(kind, value, other, fits, tmp_path) -> None:
    """Beside a file in which the column has another type."""
    pq.write_table(pa.table({"text": ["one"], "id": pa.array([value], kind)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["two"], "id": pa.array([1], other)}), tmp_path / "b.parquet")
    corpus = corpus_of(tmp_path / "*.parquet")
    if fits:
        run(corpus, tmp_path / "out")
        assert kept_rows(tmp_path / "out")["id"].to_pylist() == [value, 1]
    else:
        with pytest.raises(InputError, match=r"a\.parquet: a value does not fit"):
            run(corpus, tmp_path / "out")


@pytest.mark.parametrize(
    ("texts", "removed"),
    [(["only one document is here"], 0), (["the same words stand in all"] * 300, 299), (["a", "b", "c"], 0)],
    ids=["one", "identical", "short"],
)
def test_corpora_at_the_edge(texts: list[str], removed: int, tmp_path: Path) -> None:
    outcome = run(corpus_of(parquet(tmp_path, texts)), tmp_path / "out")
    assert outcome.result.removed == removed
    assert kept_rows(tmp_path / "out").num_rows == len(texts) - removed
    assert outcome.kept.tolist() == [0] * removed


def test_a_crowded_bucket_is_reported_and_similar_documents_still_hang_together(tmp_path, monkeypatch) -> None:
    common = " ".join(f"common{number}" for number in range(60))
    texts = [f"{common} one{number}" for number in range(40)]
    monkeypatch.setattr(pairs, "BEFORE", 5)
    outcome = run(corpus_of(parquet(tmp_path, texts)), tmp_path / "out")
    assert outcome.result.crowded == 34
    assert outcome.result.removed == 39
    assert outcome.result.candidates <= 40 * 5 * SETTINGS.banding.bands


def test_a_disk_that_is_full_is_named_and_nothing_is_left(made: Path, tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk: it is the same error of the same calls."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    corpus = corpus_of(made / "corpus.parquet")
    try:
        for size, work in (
            (100_000, lambda: run(corpus, tmp_path / "out", DEFAULTS)),
            (20_000, lambda: write_labelled(tmp_path / "out", 60, 1)),
        ):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            with pytest.raises(OSError, match="too large") as caught:
                work()
            assert caught.value.filename == str(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_written_over_and_a_failure_leaves_nothing(tmp_path, monkeypatch) -> None:
    (tmp_path / "in").mkdir()
    corpus = corpus_of(parquet(tmp_path / "in", DOCUMENTS))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        run(corpus, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    run(corpus, tmp_path / "empty")
    monkeypatch.setattr("trainer.data.corpus.dedup.run.write_parts", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(corpus, tmp_path / "failed")
    changed = replace(corpus, documents=9)
    with pytest.raises(InputError, match=r"7 of 9 documents found from document 0 on; it was changed"):
        run(changed, tmp_path / "changed")
    with pytest.raises(InputError, match="holds tokens; allowed: strings"):
        run(replace(corpus, content="tokens"), tmp_path / "tokens")
    with pytest.raises(InputError, match=r"/in/data.parquet/out: cannot be written \(Not a directory\)"):
        run(corpus, tmp_path / "in" / "data.parquet" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "in", "out"]
