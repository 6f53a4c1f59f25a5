"""``harness audit`` through the command line: what it prints, what it refuses, and the pages that are shipped."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.cli import main

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "profiles" / "published"
PAGES = ROOT / "results" / "reference" / "audit"
NAMES = ["founding-gh200", "llmc-gpt2-124m", "nanogpt-gpt2-124m"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["audit", *words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_page_is_what_the_command_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a change of words or figures is meant: harness audit FILE > results/reference/audit/NAME.md."""
    status, text, errors = run(capsys, str(PUBLISHED / f"{name}.yaml"))
    assert (status, errors) == (0, "")
    assert text == (PAGES / f"{name}.md").read_text(encoding="utf-8")


def test_json_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(capsys, str(PUBLISHED / "founding-gh200.yaml"), "--json")
    assert status == 0
    found = json.loads(text)
    assert len(found["conclusion"]) == 2
    states = {row["name"]: row["status"] for row in found["rows"]}
    assert [name for name, state in states.items() if state != "consistent"] == ["padding-free b1"]
    assert [one["kind"] for one in found["rows"][2]["readings"]] == ["sequence", "formula"]
    assert {gain["verdict"] for gain in found["gains"]} == {
        "loss with a faster data path", "not comparable", "above the ceiling",
    }  # fmt: skip
    assert found["traffic"]["passes"] == 21


@pytest.mark.parametrize(("text", "said"), [
    ("title: [", "not valid YAML"),
    ("title: t\nsource: s\n", "rows: this key is required"),
    ("title: t\nsource: s\nrows: [{name: a, tflops: x}]\n", "rows[0].tflops: 'x' is not a figure; allowed:"),
    ("title: t\nsource: s\nrows: [{name: a, flops: 1}]\n", "rows[0].flops: unknown key"),
])  # fmt: skip
def test_a_broken_file_is_one_line(tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    status, out, errors = run(capsys, str(path))
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"harness: {path}")
    assert said in errors


def test_a_terminal_gets_the_page_laid_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It printed the markdown itself. The words of the page are all there; its marks are not."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    path = str(PUBLISHED / "founding-gh200.yaml")
    _, page, _ = run(capsys, path)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, shown, _ = run(capsys, path)
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert not any(mark in plain for mark in ("**", "# Audit", "## ", "| ---", "|---"))
    assert all(line in plain for line in ("Rows", "Ceilings and gains", "Inferences", "How to read this"))
    assert set(re.findall(r"[A-Za-z]{4,}", page)) <= set(re.findall(r"[A-Za-z]{4,}", plain))
    status, data, _ = run(capsys, path, "--json")
    assert (status, len(json.loads(data)["conclusion"])) == (0, 2)


def test_a_title_steers_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(
        'title: "a\\e]0;x\\a &#27;]0;y [red]b[/red]"\nsource: s\nrows: [{name: x, tokens_per_s: 5}, {name: z}]\n'
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    status, shown, _ = run(capsys, str(path))
    assert status == 0
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert "[red]b[/red]" in shown


def test_any_text_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names from a file must not break a table."""
    path = tmp_path / "odd.yaml"
    path.write_text('title: "a | b"\nsource: s\nrows: [{name: "x | y", tokens_per_s: 5}, {name: z}]\n')
    status, text, _ = run(capsys, str(path))
    assert status == 0
    assert "| x \\| y | 5 |" in text
