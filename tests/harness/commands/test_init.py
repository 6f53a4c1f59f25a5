"""``harness init`` writes a scenario that loads as it was asked for, or nothing."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from harness.scenario.load import load_scenario
from tests.commands import harness
from trainer.json_types import section


def test_without_answers_it_writes_a_scenario_of_the_builtin_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = harness("init", str(path))
    assert done.returncode == 0, done.stderr
    assert f"harness run {path}" in done.stdout
    scenario = load_scenario(path)
    assert scenario.name == "mine"
    assert list(scenario.arms) == ["text", "tokens", "text-w1"]
    assert set(scenario.controls) == {"a-a", "ideal-data", "data-only"}
    assert [one.name for one in tmp_path.iterdir()] == ["mine.yaml"]


def test_what_is_given_is_in_it_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    odd = "it's: #mine/*.parquet"
    words = ["--parquet", odd, "--column", "no", "--tokenizer", "a b", "--model", "llama-tiny", "--batch-size", "16"]
    done = harness("init", str(path), *words, "--name", "on", "--device", "cpu", "--sequence-length", "256")
    assert done.returncode == 0, done.stderr
    scenario = load_scenario(path)
    base = scenario.base
    data = section(base, "data")
    assert data["corpus"] == {"parquet": odd, "column": "no"}
    assert data["tokenizer"] == {"pretrained": "a b"}
    assert (data["sequence_length"], data["batch_size"]) == (256, 16)
    assert section(base, "model") == {"preset": "llama-tiny"}
    assert section(base, "compute") == {"device": "cpu"}
    assert scenario.name == "on"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--model", "gpt5"], "preset"),
        (["--batch-size", "many"], "batch_size"),
        (["--name", "../evil"], "name"),
        (["--device", "tpu"], "device"),
        (["--parquet", "\udc80x"], "--parquet"),
        (["--column", "a\nb"], "--column"),
    ],
)
def test_a_wrong_answer_is_one_line_and_nothing_is_written(tmp_path: Path, words: list[str], line: str) -> None:
    done = harness("init", str(tmp_path / "mine.yaml"), *words)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert line in done.stderr
    assert str(tmp_path / "mine.yaml") in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("kept")
    done = harness("init", str(path))
    assert (done.returncode, path.read_text()) == (2, "kept")
    assert harness("init", str(path), "--force").returncode == 0
    assert load_scenario(path).name == "mine"
    assert harness("init", str(tmp_path / "no" / "mine.yaml")).returncode == 2
    folder = harness("init", str(tmp_path), "--force")
    assert (folder.returncode, "is a folder; give a file" in folder.stderr) == (2, True)
    zeros = harness("init", str(path), "--force", "--sequence-length", "0256")  # which YAML would read as octal
    assert zeros.returncode == 0
    assert section(load_scenario(path).base, "data")["sequence_length"] == 256


def test_on_a_terminal_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    from harness.commands import init

    monkeypatch.setattr(sys, "stdin", Terminal("asked\n\n\n\nllama-tiny\ncpu\n\n8\n"))
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    arguments = init_arguments(str(tmp_path / "a.yaml"))
    assert init.init(arguments, []) == 0
    assert "your tokenizer" in shown.getvalue()
    scenario = load_scenario(tmp_path / "a.yaml")
    assert scenario.name == "asked"
    assert section(scenario.base, "data")["batch_size"] == 8
    assert section(scenario.base, "model") == {"preset": "llama-tiny"}


def init_arguments(*words: str) -> object:
    import argparse

    from harness.commands.init import add_arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)
