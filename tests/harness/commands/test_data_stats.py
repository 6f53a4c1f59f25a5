"""``harness data stats``: the page, the files and the JSON, of a corpus and of a scenario's arms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import harness
from tests.harness.commands.test_cli import refused
from tests.trainer.data.conftest import make_texts
from tests.trainer.data.corpus.corpora import jsonl, parquet

PAGE = """\
# `data.jsonl`

| of the corpus | value |
| --- | ---: |
| format | jsonl, text, 1 file |
| tokenizer | wordpiece"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        jsonl(tmp_path_factory.mktemp("corpus"), [*make_texts(), "the lazy fox", "the lazy fox", "<|endoftext|>"])
    )


def test_the_page_of_a_corpus_and_its_files(corpus: str, tmp_path: Path) -> None:
    done = harness(
        "data", "stats", "--corpus", corpus, "--tokenizer", "wordpiece:300", "--sequence-length", "16",
        "--sequence-length", "32", "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()) == (0, ["counting data.jsonl: 63 documents"])
    page = done.stdout
    assert page.startswith(PAGE)
    assert "| documents | 63 |" in page
    assert "| exact duplicates | 1 document (" in page
    assert "The text contains special tokens" in page
    assert "| 16 | 60 | " in page
    assert "| 32 | 60 | " in page
    assert f"written to {tmp_path}/out: stats.md, stats.json, corpus-lengths.png" in page
    written = (tmp_path / "out" / "stats.md").read_text()
    assert '<img src="corpus-lengths.png"' in written
    assert (tmp_path / "out" / "corpus-lengths-narrow.svg").is_file()
    assert (tmp_path / "out" / "corpus-lengths.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "out" / "stats.json").read_text())
    printed = harness(
        "data", "stats", "--corpus", corpus, "--tokenizer", "wordpiece:300", "--sequence-length", "16",
        "--sequence-length", "32", "--json",
    )  # fmt: skip
    assert json.loads(printed.stdout) == found
    assert (found["documents"], found["duplicate_documents"]) == (63, 1)
    assert [one["sequence_length"] for one in found["at"]] == [16, 32]
    assert sum(one["documents"] for one in found["bins"]) == 60


def test_a_scenarios_arms_are_counted_by_what_they_read(corpus: str, tmp_path: Path) -> None:
    other = parquet(tmp_path, ["a b c"] * 5)
    scenario = tmp_path / "mine.yaml"
    scenario.write_text(f"""\
name: mine
question: which corpus is longer?
base:
  model: {{preset: gpt2-tiny}}
  data: {{sequence_length: 48, corpus: {{path: '{corpus}'}}}}
  compute: {{device: cpu}}
arms:
  first: {{}}
  same-data: {{data.path: tokens-stream}}
  other: {{data.corpus.path: '{other}'}}
""")
    done = harness("data", "stats", str(scenario), "--set", "data.tokenizer.train.vocab_size=300")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# `") == 2
    assert done.stdout.count("\n| 48 | ") == 2  # the scenario's own length among the usual ones
    one = harness("data", "stats", str(scenario), "--arm", "other", "--set", "data.tokenizer.train.vocab_size=300")
    assert "| exact duplicates | 4 documents (80 %; 80 % of bytes) |" in one.stdout
    assert "Documents repeat" in one.stdout


@pytest.mark.parametrize(("words", "line"), [
    ((), "give a scenario, or --corpus and --tokenizer"),
    (("--corpus", "no/such", "--tokenizer", "bpe:300"), "data.corpus.path: no no/such"),
    (("--corpus", "x", "--tokenizer", "bpe:300", "--sequence-length", "1"), "--sequence-length 1: allowed: 2 to"),
    (("quickstart", "--corpus", "x"), "--corpus cannot be combined with a scenario"),
])  # fmt: skip
def test_what_is_wrong_is_one_line(words: tuple[str, ...], line: str) -> None:
    assert line in refused("data", "stats", *words)


def test_a_folder_that_cannot_be_written_is_one_line(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    words = ("--corpus", corpus, "--tokenizer", "bpe:300", "--out", str(tmp_path / "file" / "out"))
    done = harness("data", "stats", *words)
    assert (done.returncode, done.stdout) == (2, ""), "nothing is counted before"
    assert done.stderr == f"harness: --out {tmp_path}/file/out: cannot write there; give a folder that can be written\n"
