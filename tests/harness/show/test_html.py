"""summary.html without a browser: what users named cannot become markup, nothing is fetched, tables are read aloud."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.show.build import build_report
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.conftest import drawing
from tests.harness.synthetic import Arm, build, write

NASTY = "<script>alert(1)<&\"' | $x_{$"  # no slash: an arm's name is a folder, and so is a scenario's
QUESTION = "</script><script>alert(2)</script><img src=//example.org/x>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study")
    slow = Arm(NASTY, tokenize=9.0)
    fast = Arm("tokens", tokenize=0.0, declared={"data.path": "tokens-padded"})
    study, runs = build([slow, fast, *slow.controls("data-only")], [(NASTY, "tokens")], blocks=2)
    write(StudyFolder(path), replace(study, question=QUESTION, scenario=NASTY), runs)
    with drawing():
        build_report(path)
    return path


@pytest.fixture(scope="module")
def tags(folder: Path) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed((folder / "summary.html").read_text())
    return parser.found


def test_names_and_questions_stay_text(folder: Path, tags: list[tuple[str, dict[str, str | None]]]) -> None:
    text = (folder / "summary.html").read_text()
    assert [attributes.get("type") for tag, attributes in tags if tag == "script"] == ["application/json", None, None]
    assert not [tag for tag, _ in tags if tag == "img"]
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "\\u003cscript>alert(1)" in text  # in the data of the chart


def test_nothing_is_fetched(folder: Path, tags: list[tuple[str, dict[str, str | None]]]) -> None:
    for tag, attributes in tags:
        assert tag not in ("link", "iframe", "object", "img")
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    (policy,) = (one for tag, one in tags if tag == "meta" and "http-equiv" in one)
    assert "default-src 'none'" in (policy["content"] or "")
    assert "url(http" not in (folder / "summary.html").read_text()


def test_tables_have_headers_and_pictures_have_words(
    folder: Path, tags: list[tuple[str, dict[str, str | None]]]
) -> None:
    assert {attributes.get("scope") for tag, attributes in tags if tag == "th"} == {"row", "col"}
    pictures = [attributes for tag, attributes in tags if tag == "svg"]
    assert len(pictures) >= 3
    assert all(one.get("role") == "img" and one.get("aria-label") for one in pictures)

    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    sections = [one for one in ids if not re.search(r"-(DejaVu|p[0-9a-f]{10}|m[0-9a-f]{10})", one or "")]
    assert len(sections) == len(set(sections))
    # matplotlib would read the dollar signs of the name as a formula, and fail.
    assert min(path.stat().st_size for path in (folder / "plots").iterdir()) > 10_000


def test_a_page_is_printed_as_it_is_written(folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder, tmp_path / "study"))  # the pictures of the other stay
    done = harness("report", str(folder), "--format", "html")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (folder / "summary.html").read_text()
