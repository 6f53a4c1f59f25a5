"""Every file of this repository that the documents name exists: links, paths in backticks and code blocks, modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import harness

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
        *(path for folder in ("docs", "harness", "trainer", "examples") for path in (ROOT / folder).rglob("*.md")),
        ROOT / "results" / "reference" / "README.md",
    ]
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FROM_ROOT = re.compile(r"(?<![\w./-])(?:harness|trainer|tests|docs|scenarios|profiles|\.ci)/[\w./-]*")
_MODULE = re.compile(r"(?<![\w./-])(?:harness|trainer|tests)(?:\.[a-z_]+)+")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
_TEST = re.compile(r"(tests/[\w./-]+\.py)::(\w+)")
_SUFFIXES = (".py", ".md", ".toml", ".txt")
# What the harness writes, and names that stand for another's choice.
_NOT_OURS = {"summary.md", "log.txt", "NAME.py", "train.py", "results/exec"}


def missing(text: str, folder: Path) -> set[str]:
    """The names in ``text``, a document in ``folder``, of files that this repository does not have."""
    found = (_missing_links(text, folder), _missing_paths(text, folder), _missing_modules(text), _missing_tests(text))
    return {name for names in found for name in names}


def _missing_tests(text: str) -> Iterator[str]:
    """Tests, named as pytest does, that their file does not define."""
    for path, name in _TEST.findall(text):
        file = ROOT / path
        if not file.is_file() or not re.search(rf"^ *def {name}\(", file.read_text(), re.MULTILINE):
            yield f"{path}::{name}"


def _missing_links(text: str, folder: Path) -> Iterator[str]:
    for target in _LINK.findall(text):
        path = target.partition("#")[0]
        if path and "://" not in path and not (folder / path).exists():
            yield target


def _missing_paths(text: str, folder: Path) -> Iterator[str]:
    """Paths from the root wherever they stand; in backticks also paths from the document's folder or from harness/."""
    bases = (ROOT, folder, ROOT / "harness")
    for path in _FROM_ROOT.findall(text):
        if "NAME" not in path and not (ROOT / path.rstrip(".")).exists():
            yield path
    for code in _CODE.findall(text):
        if not _PATH.fullmatch(code) or code in _NOT_OURS or "NAME" in code:
            continue
        first, slash, _ = code.partition("/")
        ours = code.endswith(_SUFFIXES) or bool(slash and any((base / first).is_dir() for base in bases))
        if ours and not any((base / code).exists() for base in bases):
            yield code


def _missing_modules(text: str) -> Iterator[str]:
    """Dotted names that lead to no module, nor to something that its file names."""
    for name in _MODULE.findall(text):
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            path = ROOT.joinpath(*parts[:length])
            file = path / "__init__.py" if length < len(parts) and path.is_dir() else path.with_suffix(".py")
            if file.is_file() and all(part in file.read_text() for part in parts[length:]):
                break
            if path.is_dir() and length == len(parts):
                break
        else:
            yield name


ROOMS = sorted({path.parent for top in ("harness", "trainer") for path in (ROOT / top).glob("*/*.py")})
README_LINES_MAX = 20  # about ten are the plan; the agent's has a diagram


@pytest.mark.parametrize("room", [*ROOMS, ROOT / "harness/attach/agent"], ids=lambda room: room.name)
def test_every_room_has_a_readme_that_the_architecture_links(room: Path) -> None:
    readme = room / "README.md"
    assert readme.is_file()
    assert len(readme.read_text().partition("```mermaid")[0].splitlines()) <= README_LINES_MAX
    assert f"(../../{readme.relative_to(ROOT)})" in (ROOT / "docs/internals/architecture.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_exists(document: Path) -> None:
    assert missing(document.read_text(), document.parent) == set()


@pytest.mark.parametrize("text", [
    "[gone](docs/gone.md)",
    "`harness/gone.py`",
    "`analysis/gone.py`",
    "`gone.py`",
    "`results/gone`",
    "```\nscenario ──> harness/gone.py (checks)\n```",
    "`harness.analysis.gone`",
    "`harness.judge.study.gone_function`",
    "tests/test_docs.py::test_gone",
])  # fmt: skip
def test_what_is_not_there_is_found(text: str) -> None:
    assert len(missing(text, ROOT)) == 1


@pytest.mark.parametrize("text", [
    "[there](docs/internals/architecture.md#x) and [elsewhere](https://example.org/gone.md)",
    "`judge/study.py`, `harness/probes/`, `tokens/s`, `harness run scenarios/quickstart.yaml`",
    "`tests/test_docs.py::test_what_a_document_names_exists`",
    "`runs/<arm>/<block>/*.parquet`, `python -m tests.campaigns known_truth`, `harness.judge.study.analyse`",
])  # fmt: skip
def test_what_is_there_or_is_no_file_of_ours_passes(text: str) -> None:
    assert missing(text, ROOT) == set()


def test_the_sample_in_the_readme_is_what_the_reference_study_says() -> None:
    done = harness("explain", str(ROOT / "results" / "reference" / "quickstart"))
    assert done.returncode == 0, done.stderr
    assert f"```\n{done.stdout.rstrip()}\n```" in (ROOT / "README.md").read_text()
