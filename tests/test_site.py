"""The documentation site: its pages, its generated reference, its links; and its build, where zensical is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

import harness
from docs.generate import GENERATED, pages, stage, summary_keys
from harness.cli import COMMANDS
from harness.commands import exit_codes
from harness.scenario.errors import dotted_keys
from harness.scenario.model import Scenario
from tests.test_docs import ROOT
from trainer.config import TrainerConfig

LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# What a browser fetches by itself. Links that a reader may follow are not of these.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*\shref=\"?(?:https?:)?//(?!\")"
)
PROSE_WORDS = 400  # of a guide or a concept: two screens
ARCHITECTURE_WORDS = 900


def navigation() -> Iterator[str]:
    def entries(inner: Any) -> Iterator[str]:
        for entry in inner:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else entries(value)

    yield from entries(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "build" / "docs"
    stage(folder)
    return folder


def test_every_page_of_docs_is_in_the_navigation_once() -> None:
    shown = list(navigation())
    assert len(shown) == len(set(shown))
    assert {place for path, place in pages().items() if ROOT / "docs" in path.parents} <= set(shown)
    assert set(shown) <= set(pages().values())
    assert set(GENERATED) <= set(shown)


@pytest.mark.parametrize("folder", ["guides", "concepts"])
def test_a_guide_or_concept_fits_two_screens(folder: str) -> None:
    texts = {path.name: FENCE.sub("", path.read_text()) for path in (ROOT / "docs" / folder).glob("*.md")}
    long = {name: len(text.split()) for name, text in texts.items() if len(text.split()) > PROSE_WORDS}
    assert set(long) <= {"glossary.md"}


def test_the_architecture_fits_one_page() -> None:
    assert len((ROOT / "docs" / "internals" / "architecture.md").read_text().split()) <= ARCHITECTURE_WORDS


@pytest.mark.slow
def test_the_reference_has_every_command_key_code_and_name(staged: Path) -> None:
    text = {place: (staged / place).read_text() for place in GENERATED}
    for name in COMMANDS:
        assert f"## harness {name}\n" in text["reference/command-line.md"]
    assert "`--against 'COMMAND'`" in text["reference/command-line.md"]
    keys = dotted_keys(TrainerConfig)
    leaves = {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}
    assert {
        key for key in (*leaves, *Scenario.model_fields) if f"| `{key}` |" not in text["reference/scenario-keys.md"]
    } == set()
    for code in exit_codes.MEANINGS:
        assert f"| `{code}` |" in text["reference/exit-codes.md"]
    for name in set(harness.__all__) - {"__version__"}:
        assert f"## harness.{name}\n" in text["reference/python.md"]
    assert "`contended_ns`" in text["reference/columns.md"]


@pytest.mark.slow
def test_the_keys_explained_for_summary_json_are_in_one(staged: Path) -> None:
    head, _, every = (staged / "reference" / "summary-json.md").read_text().partition("## Every key")
    explained = re.findall(r"^\| `([^`]+)` \|", head, re.MULTILINE)
    listed = re.findall(r"^\| `([^`]+)` \|", every, re.MULTILINE)
    assert len(explained) >= 8
    assert [key for key in explained if key not in listed and not any(one.startswith(f"{key}") for one in listed)] == []


def test_a_users_names_are_no_keys() -> None:
    estimate = {"median": 1.0, "ci_low": 0.9, "ci_high": 1.1, "n": 3}
    content = {"arms": {"mine": {"step_ms": estimate, "mfu": None}, "yours": {"step_ms": estimate, "mfu": 0.5}}}
    assert summary_keys(content) == {"arms.NAME.step_ms": ("estimate", "1"), "arms.NAME.mfu": ("number", "0.5")}


@pytest.mark.slow
def test_every_link_of_the_site_leads_to_a_page_or_picture(staged: Path) -> None:
    gone = {
        f"{path.relative_to(staged)}: {target}"
        for path in staged.rglob("*.md")
        for target in LINK.findall(FENCE.sub("", path.read_text()))
        if "://" not in target and not (path.parent / target).exists()
    }
    assert gone == set()


@pytest.mark.slow
def test_pictures_of_a_study_have_a_narrow_drawing(staged: Path) -> None:
    """Text of a wide picture is 5 pixels high on a phone."""
    for place in ("index.md", "evidence/quickstart/summary.md"):
        page = staged / place
        found = re.findall(r'srcset="([^"]+)"/><img src="([^"]+)"', page.read_text())
        assert found, place
        for narrow, wide in found:
            assert (page.parent / wide).read_bytes().startswith(b"\x89PNG")
            assert ElementTree.parse(page.parent / narrow).getroot().tag.endswith("svg")


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_asks_no_other_host(staged: Path) -> None:
    if find_spec("zensical") is None:
        pytest.skip("zensical is not installed: make docs")
    folder = staged.parents[1]
    shutil.copy(ROOT / "zensical.toml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = sorted((folder / "build" / "site").rglob("*.html"))
    assert len(built) >= len(pages())
    assert {path.name for path in built if FETCHED.search(path.read_text(encoding="utf-8"))} == set()


@pytest.mark.parametrize(
    "name", ["CITATION.cff", ".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/question.yml"]
)
def test_the_files_that_hosts_read_are_yaml_of_their_form(name: str) -> None:
    content = yaml.safe_load((ROOT / name).read_text())
    needed = (
        {"cff-version", "message", "title", "authors", "version"}
        if name.endswith(".cff")
        else {"name", "description", "body"}
    )
    assert needed <= set(content)
    if name.endswith(".cff"):
        assert content["version"] == harness.__version__


@pytest.mark.parametrize(("html", "fetched"), [
    ('<script src="https://elsewhere.example/a.js"></script>', True),
    ('<link rel="stylesheet" href="//elsewhere.example/a.css">', True),
    ('<a href="https://elsewhere.example/">', False),
    ('<script src="../assets/a.js"></script><img src="a.png">', False),
])  # fmt: skip
def test_what_a_browser_fetches_is_told_from_what_a_reader_may_follow(html: str, fetched: bool) -> None:
    assert bool(FETCHED.search(html)) == fetched
