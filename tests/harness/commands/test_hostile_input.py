"""Files and arguments that nobody writes by accident: one line says what is wrong, and the exit code is 2."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import harness

SCENARIO = "name: s\nquestion: q\nbase: {data.corpus.documents: 4}\narms: {a: null}\n"
ROW = "title: t\nsource: s\nrows:\n- {name: r, step_ms: FIGURE}\n"


def refused(*words: str, **environment: str) -> str:
    done = harness(*words, **environment)
    assert (done.returncode, done.stdout) == (2, "")
    line = done.stderr.rstrip("\n").rpartition("\n")[2]  # what it is doing comes before
    assert line.startswith("harness: ")
    assert line.isprintable()
    return line


@pytest.mark.parametrize("figure", ["1e-400", "1e-99999999999", "1e99999999999999999999", "0." + "0" * 400 + "1"])
def test_figures_beyond_every_measurement(tmp_path: Path, figure: str) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(ROW.replace("FIGURE", f'"{figure}"'))
    assert "table.yaml:4: rows[0].step_ms: " in refused("audit", str(path))


@pytest.mark.parametrize("rate", ["1e-308", "0", "1e31", ".nan", ".inf"])
def test_a_rate_that_nothing_has(tmp_path: Path, rate: str) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(ROW.replace("FIGURE", "1") + f"declared: {{peak_flops_per_s: {rate}}}\n")
    assert ": declared.peak_flops_per_s: " in refused("audit", str(path))


@pytest.mark.parametrize("text", ["9" * 5000, "-1", "٣", "1e2", "126", ""])
def test_an_exit_code_that_there_is_not(text: str) -> None:
    line = refused("compare", "x", "y", f"--undecided-exit={text}")
    assert line.endswith(": allowed: 0 to 125")
    assert len(line) < 120


def test_a_file_to_extend_whose_name_no_file_can_have(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO + 'extends: "a\\0b"\n')
    assert refused("run", str(path), "--plan") == f"harness: {path}:5: extends: 'a\\x00b': no such file"


@pytest.mark.parametrize("setting", [
    "data.tokenizer={pretrained: ~nobody-at-all/x}",
    "data.tokenizer={sentencepiece: ~nobody-at-all/x}",
    "data.corpus.parquet=~nobody-at-all/x",
])  # fmt: skip
def test_the_home_folder_of_nobody(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "corpus.parquet")
    words = () if "corpus" in setting else ("--set", f"data.corpus={{parquet: {tmp_path / 'corpus.parquet'}}}")
    line = refused("data", "pretokenize", str(path), *words, "--set", setting)
    assert line.endswith("~nobody-at-all/x: unknown home folder of ~nobody-at-all")


def test_the_home_folder_of_nobody_for_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    line = refused("data", "pretokenize", str(path), HARNESS_CACHE="~nobody-at-all/x")
    assert line.endswith("unknown home folder of ~nobody-at-all")


@pytest.mark.parametrize("words", [
    ["report", "STUDY"],
    ["compare", "STUDY", "STUDY"],
    ["train", "quickstart", "--out", "STUDY"],
    ["init", "mine.yaml", "--parquet", "STUDY"],
])  # fmt: skip
def test_a_path_that_is_no_utf_8_is_one_line(tmp_path: Path, words: list[str]) -> None:
    """pyarrow takes no such path: it was a traceback."""
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    line = refused(*(name if word == "STUDY" else word for word in words))
    before = words[words.index("STUDY") - 1]
    where = before if before.startswith("--") else "argument"
    assert line == f"harness: {where}: {tmp_path}/\\udcff: its name is not UTF-8; rename it"


def test_names_of_columns_that_steer_a_terminal(tmp_path: Path) -> None:
    corpus, path = tmp_path / "corpus.parquet", tmp_path / "s.yaml"
    pq.write_table(pa.table({"a\n\x1b[2J": ["x"], "b": ["y"]}), corpus)
    path.write_text(SCENARIO)
    line = refused("data", "pretokenize", str(path), "--set", f"data.corpus={{parquet: {corpus}, column: text}}")
    assert line.endswith("no column 'text'; it has a\\n\\x1b[2J, b")
