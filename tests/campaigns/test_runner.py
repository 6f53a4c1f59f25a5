"""One command runs every campaign."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.campaigns import __main__ as runner

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("results/reference/**/*.md"), *ROOT.glob("tests/**/*.md")]
COMMAND = re.compile(r"(?:python -m tests\.|`)campaigns ([\w.]*\w)")


def test_every_campaign_that_a_page_names_is_there() -> None:
    named = {name for page in PAGES for name in COMMAND.findall(page.read_text())}
    assert named - {"NAME"} <= set(runner.names())
    assert {"known_truth", "faults.kills", "attached_truth.controls"} <= named


def test_each_campaign_says_how_it_is_called() -> None:
    assert [name for name in runner.names() if not _names_itself(name)] == []


def _names_itself(name: str) -> bool:
    path = runner.HERE / name / "__main__.py"
    text = path.read_text() if path.exists() else runner.source(name)
    return f"python -m tests.campaigns {name}" in text.partition("\nfrom ")[0]


def test_its_arguments_reach_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sys, "argv", ["before"])
    monkeypatch.setattr(runner.runpy, "run_module", lambda module, **_: seen.extend([module, *sys.argv]))
    assert runner.main(["faults.kills", "--count", "2"]) == 0
    assert seen == ["tests.campaigns.faults.kills", "python -m tests.campaigns faults.kills", "--count", "2"]


def test_an_unknown_name_lists_the_campaigns(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["no-such"]) == 2
    assert "\n  verdict_rates\n" in capsys.readouterr().out
