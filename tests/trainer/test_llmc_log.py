"""llm.c's main.log: what its lines say, restarts, old logs, a cut end, and files that are none."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.refusals import refusal
from trainer.errors import InputError
from trainer.llmc_log import LoggedScore, LoggedStep, read_log

LOG = """\
s:0 tel:10.9500
s:0 trl:10.9312 lr:0.000001 norm:15.36
s:1 trl:10.8000 lr:0.000002 norm:15.00
s:250 eval:0.2533
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "main.log"
    path.write_bytes(text.encode())
    return path


def test_each_kind_of_line_is_read(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, LOG))
    assert log.training == (LoggedStep(0, 10.9312, 1e-6, 15.36), LoggedStep(1, 10.8, 2e-6, 15.0))
    assert log.validation == (LoggedScore(0, 10.95),)
    assert log.hellaswag == (LoggedScore(250, 0.2533),)
    assert (log.other_lines, log.cut) == (0, False)


def test_older_logs_restarts_and_other_kinds(tmp_path: Path) -> None:
    """Older logs have the loss alone and ``eva``; of a restarted training the later line counts; NaN is a value."""
    text = "s:0 trl:9.0\ns:1 trl:8.0\n\ns:250 eva:0.25\ns:1 trl:nan\ns:1 gpu:40\ns:2 trl:-nan lr:0.1 norm:inf\r\n"
    log = read_log(written(tmp_path, text))
    assert [one.step for one in log.training] == [0, 1, 2]
    assert log.training[0] == LoggedStep(0, 9.0, None, None)
    assert math.isnan(log.training[1].loss)
    assert log.training[2].norm == math.inf
    assert log.hellaswag == (LoggedScore(250, 0.25),)
    assert log.other_lines == 1


@given(cut=st.integers(1, len(LOG) - 1))
def test_a_cut_log_has_no_wrong_value(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Cut anywhere, what is left of it is what whole lines say: 'trl:10.9312' cut to 'trl:1' is not a loss of 1."""
    path = written(tmp_path_factory.mktemp("log"), LOG[:cut])
    whole = LOG[:cut].count("\n")
    if not whole:
        with pytest.raises(InputError, match="no step in it"):
            read_log(path)
        return
    log, full = read_log(path), read_log(written(path.parent, LOG))
    assert log.cut is not LOG[:cut].endswith("\n")
    assert len(log.training) + len(log.validation) + len(log.hellaswag) == whole
    assert log.training == full.training[: len(log.training)]


@pytest.mark.parametrize(("text", "message"), [
    ("", "no step in it"),
    ("s:0 gpu:3\n", "no step in it"),
    ("step,tokens,loss\n0,1,2\n", "main.log:1: not a line of llm.c's main.log: 'step,tokens,loss'"),
    (LOG + "s:x trl:1\n", "main.log:5: not a line"),
    (LOG + "s:3\n", "main.log:5: not a line"),
    (LOG + "s:-3 trl:1\n", "main.log:5: not a line"),
    (LOG + f"s:{2**31} trl:1\n", "main.log:5: not a line"),
    (LOG + "s:3 trl\n", "main.log:5: not a line"),
    ("x" * 10_000_000 + "\n", "main.log:1: not a line"),
])  # fmt: skip
def test_another_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    said = refusal(read_log, written(tmp_path, text))
    assert message in said
    assert len(said) < 300


def test_what_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 8)
    with pytest.raises(InputError, match="it is no text"):
        read_log(tmp_path / "model.bin")
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path)
