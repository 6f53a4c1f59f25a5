"""A corpus neither loses nor doubles a file without a word: what is read and what is passed over is counted."""

from __future__ import annotations

import bz2
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands import harness
from tests.examples import examples
from tests.trainer.data.conftest import write_parquet
from tests.trainer.data.corpus.corpora import arrow, saved_to_disk
from tests.trainer.refusals import refusal
from trainer.config import CorpusConfig
from trainer.data.corpus import Corpus, iter_texts, prepare_corpus
from trainer.errors import visible

Passed = dict[str, tuple[int, tuple[str, ...]]]


def lines(path: Path, *texts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    return path


def opened(path: Path | str, **settings: str) -> tuple[list[str], Passed]:
    """The documents, and what was passed over by reason."""
    corpus = prepare_corpus(CorpusConfig.model_validate({"path": str(path), **settings}))
    return texts_of(corpus), {one.reason: (one.count, one.names) for one in corpus.passed_over}


def texts_of(corpus: Corpus) -> list[str]:
    return [text for part in iter_texts(corpus) for text in part]


def refused(path: Path | str, **settings: str) -> str:
    return refusal(prepare_corpus, CorpusConfig.model_validate({"path": str(path), **settings}))


def test_what_a_folder_has_beside_its_tables_is_counted(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", "a")
    lines(tmp_path / "b.JSONL", "b")
    for name in ("notes.txt", "README.md", "LICENSE", "data.csv", ".x", "_SUCCESS", "sub/.y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "info.json").write_text('{\n "text": "of a data set"\n}\n')
    os.mkfifo(tmp_path / "pipe")
    texts, passed = opened(tmp_path)
    assert texts == ["a", "b"]
    assert passed == {
        "hidden": (3, (".x", "_SUCCESS", "sub/.y")),
        "format": (3, ("README.md", "info.json", "notes.txt")),
        "suffix": (2, ("LICENSE", "data.csv")),
        "special": (1, ("pipe",)),
    }


def test_the_command_prints_what_is_read_and_what_is_not(tmp_path: Path) -> None:
    lines(tmp_path / "in" / "a.jsonl", "some words", "more words")
    (tmp_path / "in" / "b.txt").write_text("text")
    done = harness("data", "dedup", "--corpus", str(tmp_path / "in"), "--out", str(tmp_path / "out"))
    assert done.returncode == 0
    shown = [line for line in done.stderr.splitlines() if "passed over" in line]
    assert len(shown) == 1
    assert "1 file read (a.jsonl)" in shown[0]
    assert "(b.txt)" in shown[0]


def test_rows_in_a_json_file_beside_tables_are_ambiguous(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", "a")
    lines(tmp_path / "b.json", "b")
    assert f"{tmp_path}/b.json" in refused(tmp_path)
    assert f"{tmp_path}/b.json" in refused(tmp_path, format="jsonl")
    assert opened(f"{tmp_path}/*.json*") == (["a", "b"], {})
    (tmp_path / "a.jsonl").unlink()
    assert opened(tmp_path) == (["b"], {})
    write_parquet(tmp_path / "c.parquet", ["c"])
    assert f"{tmp_path}/b.json" in refused(tmp_path)
    assert opened(tmp_path, format="parquet") == (["c"], {"format": (1, ("b.json",))})


@pytest.mark.parametrize("name", ["b.jsonl.xz", "b.txt.zip", "b.parquet.gz", "b.arrow.lz4"])
def test_documents_in_a_compression_that_is_not_read_are_refused(tmp_path: Path, name: str) -> None:
    lines(tmp_path / "a.jsonl", "a")
    (tmp_path / name).write_bytes(b"packed")
    assert f"{tmp_path}/{name}" in refused(tmp_path)


@pytest.mark.parametrize("name", ["a.jsonl.bz2", "a.jsonl", "a"])
def test_bzip2_is_read_whatever_its_name_and_refused_where_it_is_cut(tmp_path: Path, name: str) -> None:
    content = lines(tmp_path / "x", "a", "b" * 1000).read_bytes()
    (tmp_path / "x").unlink()
    packed = bz2.compress(content[:20]) + bz2.compress(content[20:])
    (tmp_path / name).write_bytes(packed)
    assert opened(tmp_path / name)[0] == ["a", "b" * 1000]
    (tmp_path / name).write_bytes(packed[:-5])
    assert f"{tmp_path}/{name}" in refused(tmp_path / name)


@pytest.mark.parametrize("pattern", ["", "*.jsonl", "**", "b.jsonl"])
def test_a_link_to_nothing_is_an_error(tmp_path: Path, pattern: str) -> None:
    """As of a shard on a disk that is not mounted."""
    lines(tmp_path / "a.jsonl", "a")
    (tmp_path / "b.jsonl").symlink_to("/no/such/file.jsonl")
    assert "/no/such/file.jsonl" in refused(tmp_path / pattern)
    (tmp_path / "b.jsonl").rename(tmp_path / ".b.jsonl")
    if pattern != "b.jsonl":
        assert opened(tmp_path / pattern)[0] == ["a"]


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "*/*.jsonl"])
def test_a_glob_through_a_linked_folder_that_is_not_there_is_an_error(tmp_path: Path, pattern: str) -> None:
    lines(tmp_path / "here" / "a.jsonl", "a")
    (tmp_path / "shard").symlink_to("/no/such/folder")
    assert "/no/such/folder" in refused(tmp_path / pattern)


def test_linked_folders_are_read_once_and_loops_end(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    lines(corpus / "a.jsonl", "a")
    lines(corpus / "real" / "b.jsonl", "b")
    lines(tmp_path / "elsewhere" / "c.jsonl", "c")
    (corpus / "0-again").symlink_to(corpus / "real")  # before the folder's own name
    (corpus / "linked").symlink_to(tmp_path / "elsewhere")
    (corpus / "linked-again").symlink_to(tmp_path / "elsewhere")
    (corpus / "real" / "loop").symlink_to(corpus)
    (corpus / "real" / "up").symlink_to(tmp_path)
    (corpus / "0.jsonl").symlink_to(corpus / "a.jsonl")
    texts, passed = opened(corpus)
    assert texts == ["a", "c", "b"]  # a.jsonl, linked/c.jsonl, real/b.jsonl
    assert passed == {"repeated": (5, ("0-again/", "0.jsonl", "linked-again/"))}
    assert sorted(opened(f"{corpus}/**/*.jsonl")[0]) == ["a", "b", "c"]


def test_a_file_with_two_names_on_the_disk_is_two_files(tmp_path: Path) -> None:
    """Tools that save space link equal files; their documents were there twice before."""
    os.link(lines(tmp_path / "a.jsonl", "a"), tmp_path / "b.jsonl")
    assert opened(tmp_path) == (["a", "a"], {})


def test_a_glob_gives_each_file_once_and_counts_folders_that_it_does_not_enter(tmp_path: Path) -> None:
    for name in ("a", "b", "s/c", "s/t/d"):
        lines(tmp_path / f"{name}.jsonl", name)
    for pattern in ("**", "**/*", "**/**", "**/*.jsonl", "**/**/*.jsonl"):
        assert opened(tmp_path / pattern) == (["a", "b", "s/c", "s/t/d"], {}), pattern
    assert opened(tmp_path / "*") == (["a", "b"], {"folder": (1, ("s",))})
    (tmp_path / "p").mkdir()
    write_parquet(tmp_path / "p" / "a.parquet", ["a"])
    (tmp_path / "p" / "q").symlink_to(tmp_path / "p")
    corpus = prepare_corpus(CorpusConfig(parquet=f"{tmp_path}/p/**/*.parquet"))
    assert texts_of(corpus) == ["a"]


TREES = st.lists(
    st.tuples(
        st.sampled_from(["", "d0", "d1", "d0/d2", "d1/d3"]),
        st.sampled_from(["file", "link to a file", "link to a folder"]),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=12,
)


@examples(60)
@given(tree=TREES, deep=st.booleans())
def test_every_file_is_read_once_whatever_links_there_are(tmp_path_factory, tree, deep) -> None:
    """Each file has a text of its own: none is read twice, none is lost."""
    root = tmp_path_factory.mktemp("tree")
    files = [lines(root / "first.jsonl", "first")]
    for number, (folder, kind, target) in enumerate(tree):
        place = root / folder
        place.mkdir(parents=True, exist_ok=True)
        folders = [one for one in (root, *map(Path.absolute, map(root.joinpath, ("d0", "d1")))) if one.is_dir()]
        if kind == "file":
            files.append(lines(place / f"{number}.jsonl", f"text {number}"))
        elif kind == "link to a file":
            (place / f"{number}.jsonl").symlink_to(files[target % len(files)])
        else:
            (place / f"{number}").symlink_to(folders[target % len(folders)])
    wanted = sorted(json.loads(file.read_text())["text"] for file in files)
    assert sorted(opened(root / "**" / "*.jsonl" if deep else root)[0]) == wanted


def _pretokenized(corpus: Path, out: Path) -> None:
    words = ("data", "pretokenize", "--corpus", str(corpus), "--tokenizer", "bpe:300", "--sequence-length", "8")
    assert harness(*words, "--out", str(out)).returncode == 0


def _deduplicated(corpus: Path, out: Path) -> None:
    assert harness("data", "dedup", "--corpus", str(corpus), "--out", str(out)).returncode == 0


def _counted(corpus: Path, out: Path) -> None:
    words = ("data", "stats", "--corpus", str(corpus), "--tokenizer", "bpe:300")
    assert harness(*words, "--out", str(out)).returncode == 0


@pytest.mark.parametrize(
    ("make", "names"),
    [(_pretokenized, ("out/padded/", "out/token-list/")), (_deduplicated, ("out/",)), (_counted, ("out/",))],
)
def test_outputs_below_a_corpus_are_no_corpus(make, names, tmp_path) -> None:
    for number in range(40):
        write_parquet(tmp_path / f"{number:02}.parquet", [f"{number} is a number of some words"])
    before, nothing = opened(tmp_path)
    assert nothing == {}
    make(tmp_path, tmp_path / "out")
    for pattern in (tmp_path, tmp_path / "**" / "*.parquet"):
        texts, passed = opened(pattern)
        assert texts == before
        if pattern == tmp_path:
            assert passed["output"] == (len(names), names)
        assert set(passed) <= {"output"}


def test_what_was_kept_is_a_corpus_and_what_was_removed_is_not(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", "some words are here", "some words are here", "and others there")
    _deduplicated(tmp_path / "a.jsonl", tmp_path / "out")
    assert f"{tmp_path}/out/kept" in refused(tmp_path / "out")
    assert opened(tmp_path / "out" / "kept") == (["some words are here", "and others there"], {})


def test_an_arrow_stream_is_whole_up_to_its_end_mark_or_refused(tmp_path: Path) -> None:
    """Cut at the bounds of batches, where a reader sees a whole stream; joined with another; with bytes behind it."""
    path = arrow(tmp_path / "a.arrows", [f"text {number}" for number in range(28)])
    content = path.read_bytes()
    source = pa.BufferReader(content)
    reader = ipc.open_stream(source)
    ends = [source.tell(), *(source.tell() for _ in reader)]
    assert len(opened(path)[0]) == 28
    for end in ends[:-1]:
        path.write_bytes(content[:end])
        assert str(path) in refused(path)
    for more in (content, b"\0" * 100, b"\xff\xff\xff\xff\0\0\0\0"):
        path.write_bytes(content + more)
        assert str(path) in refused(path)


@pytest.mark.parametrize("first", [3, 28, 60])
def test_two_arrow_files_in_one_are_refused_whatever_their_sizes(tmp_path: Path, first: int) -> None:
    one = arrow(tmp_path / "1.arrow", [f"text {number}" for number in range(first)]).read_bytes()
    other = arrow(tmp_path / "2.arrow", [f"text {number}" for number in range(28)]).read_bytes()
    (tmp_path / "both.arrow").write_bytes(one + other)
    assert f"{tmp_path}/both.arrow" in refused(tmp_path / "both.arrow")


def test_an_arrow_file_with_dictionaries_compression_or_no_rows_is_whole(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["a", "b"] * 50).dictionary_encode(), "n": [-1] * 100})
    for number, options in enumerate([{}, {"compression": "zstd"}, {"metadata_version": ipc.MetadataVersion.V4}]):
        for make, suffix in ((ipc.new_file, "arrow"), (ipc.new_stream, "arrows")):
            path = tmp_path / f"{number}.{suffix}"
            with make(path, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
                writer.write_table(table, max_chunksize=30)
            assert opened(path)[0] == ["a", "b"] * 50
    arrow(tmp_path / "none.arrow", [], pa.string())
    assert "empty corpus" in refused(tmp_path / "none.arrow")


def test_a_stream_of_save_to_disk_is_compared_with_its_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_to_disk(tmp_path, [f"text {number}" for number in range(60)])
    (tmp_path / "cache-1.arrow").write_bytes(b"no data file")

    def info(rows: object, split: str = "train") -> None:
        (tmp_path / "dataset_info.json").write_text(json.dumps({"splits": {split: {"num_examples": rows}}}))

    for rows, split, expected in ((60, "train", 60), (90, "train", 90), (90, "test", None), ("x", "train", None)):
        info(rows, split)
        corpus = prepare_corpus(CorpusConfig(path=str(tmp_path)))
        assert (corpus.documents, corpus.rows_expected) == (60, expected)
        assert [(one.reason, one.names) for one in corpus.passed_over] == [("unnamed", ("cache-1.arrow",))]
        assert ("dataset_info.json" in capsys.readouterr().err) == (expected == 90)
    info(60)
    stream = tmp_path / "data-00001-of-00002.arrow"
    content = stream.read_bytes()
    source = pa.BufferReader(content)
    ipc.open_stream(source).read_next_batch()
    stream.write_bytes(content[: source.tell()])
    assert str(stream) in refused(tmp_path)


NO_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize("pattern", ["", "*.jsonl", "**/*.jsonl", f"{NO_UTF8}.jsonl"], ids=ascii)
def test_a_name_that_is_not_utf8_is_one_line(tmp_path: Path, pattern: str) -> None:
    lines(tmp_path / "a.jsonl", "a")
    lines(tmp_path / f"{NO_UTF8}.jsonl", "b")
    assert r"caf\udce9.jsonl" in visible(refused(f"{tmp_path}/{pattern}"))


@pytest.mark.parametrize(
    "words",
    [
        ("data", "pretokenize", "--corpus", "ok", "--tokenizer", "bpe:300", "--out", NO_UTF8),
        ("data", "stats", "--corpus", "ok", "--tokenizer", f"{NO_UTF8}.json"),
        ("data", "dedup", "--corpus", "ok", "--out", "out", "--labels", NO_UTF8),
        ("data", "dedup", "--make-labelled", "10", "--out", NO_UTF8),
        ("train", "quickstart", "--arm", "text-padded", "--out", NO_UTF8),
        ("train", "quickstart", "--arm", "text-padded", "--out", "out", "--set", f"data.corpus.path={NO_UTF8}"),
        ("train", "SCENARIO", "--out", "out"),
        ("run", "SCENARIO", "--out", "out"),
    ],
    ids=lambda words: visible(" ".join(words)),
)
def test_a_name_that_is_not_utf8_is_one_line_before_any_work(words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "ok" / "a.jsonl", "some words are here")
    lines(tmp_path / "wrong" / f"{NO_UTF8}.jsonl", "b")
    (tmp_path / "s.yaml").write_text(
        f"name: s\nquestion: q\nbase: {{data.corpus.path: {tmp_path}/wrong, steps: 2}}\narms: {{a: null}}\n"
    )
    done = harness(*(str(tmp_path / "s.yaml") if word == "SCENARIO" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    wrong = [line for line in done.stderr.splitlines() if r"\udce9" in line]
    assert len(wrong) == 1, done.stderr
    assert "UTF-8" in wrong[0]
    assert "Traceback" not in done.stderr
    assert ".tmp" not in done.stderr
    assert sorted(os.listdir()) == ["ok", "s.yaml", "wrong"]  # noqa: PTH208


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Of the column, or within its value; other columns are not read."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "a", "text": "b"}\n')
    assert f"{path}, row 1 (from 0)" in refused(path)
    path.write_text('{"text": [{"role": "user", "role": "x", "content": "b"}]}\n')
    (tmp_path / "t.jinja").write_text("{{ messages[0].role }}")
    assert f"{path}, row 0 (from 0)" in refused(path, chat_template=str(tmp_path / "t.jinja"))
    path.write_text('{"id": 1, "id": 2, "text": "a"}\n')
    assert opened(path)[0] == ["a"]
