"""``python -m tests.figures BASE [HEAD] [--study FOLDER]``: compare the numbers of stored studies between two commits.

Both commits rebuild the report of every study that results/reference keeps with its tables, and of the folders given;
they also audit the published tables. Every number, boolean and null of the JSON that they write is compared; text is
not. HEAD is this checkout, with its uncommitted changes, unless another commit is named.

Exit codes: 0 if no figure moved (new keys are listed), 1 if one has another value or is gone, 2 if a commit cannot
write the report of a study.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
PUBLISHED = ROOT / "profiles" / "published"
CODE = ("harness", "trainer", "profiles")
# One process for all studies: it imports once. The entrance of the command line is where every commit has it.
COMMANDS = "import json, sys; from harness.cli import main; sys.exit(max(map(main, json.loads(sys.argv[1]))))"
MAX_LINES = 60  # printed of each kind of difference

Number = int | float | bool | None
Figures = dict[str, Number]


class ReportError(Exception):
    """A commit that cannot report a study."""


@dataclass(frozen=True)
class Moved:
    """One figure that the two commits give differently. A key that one of them lacks has no value there."""

    key: str
    base: str
    head: str


@dataclass(frozen=True)
class Differences:
    """Figures with another value, figures that HEAD lacks, and figures that only HEAD has."""

    moved: tuple[Moved, ...]
    gone: tuple[Moved, ...]
    new: tuple[Moved, ...]

    @property
    def code(self) -> int:
        return int(bool(self.moved or self.gone))


def figures(value: Any, key: str = "") -> Iterator[tuple[str, Number]]:
    """Yield every number, boolean and null of a JSON value with its key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from figures(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from figures(inner, f"{key}[{place}]")
    elif not isinstance(value, str):
        yield key, value


def compare(base: Mapping[str, Figures], head: Mapping[str, Figures]) -> Differences:
    """Compare the figures of each study. Values are equal only if they are written alike: 1 is not 1.0."""
    moved, gone, new = [], [], []
    for study in sorted({*base, *head}):
        one, two = base.get(study, {}), head.get(study, {})
        for key in dict.fromkeys([*one, *two]):
            texts = [json.dumps(found[key]) if key in found else "" for found in (one, two)]
            if texts[0] != texts[1]:
                kind = new if not texts[0] else gone if not texts[1] else moved
                kind.append(Moved(f"{study}: {key}", *texts))
    return Differences(tuple(moved), tuple(gone), tuple(new))


def lines(differences: Differences, studies: int, compared: int) -> Iterator[str]:
    """Yield the lines to print: each figure that moved with both values, then keys that one commit alone has."""
    if differences.code:
        moved, gone = len(differences.moved), len(differences.gone)
        yield f"{moved} of {compared} figures of {studies} studies moved, {gone} are gone"
    else:
        yield f"identical: {compared} figures of {studies} studies"
    yield from _at_most([f"moved  {one.key}: {one.base} -> {one.head}" for one in differences.moved])
    yield from _at_most(_by_pattern("gone", differences.gone))
    yield from _at_most(_by_pattern("new", differences.new))


def _by_pattern(title: str, found: Sequence[Moved]) -> list[str]:
    """Return a line for each key of a summary, places in lists aside, with an example and the number of places."""
    groups: dict[str, list[Moved]] = {}
    for one in found:
        key = re.sub(r"\[\d+\]", "[]", one.key.partition(": ")[2])
        groups.setdefault(re.sub(r"^arms\.[^.]+", "arms.*", key), []).append(one)
    return [
        f"{title:5}  {key} ({len(group)} places, such as {group[0].key}: {group[0].base or group[0].head})"
        for key, group in groups.items()
    ]


def _at_most(found: list[str]) -> list[str]:
    left = len(found) - MAX_LINES
    return found if left <= 0 else [*found[:MAX_LINES], f"... and {left} more"]


def unpack(folder: Path, more: Sequence[Path]) -> dict[str, Path]:
    """Copy every stored study that has its tables, and those in ``more``, into ``folder``; return them by name."""
    for archive in sorted(REFERENCE.rglob("*.tar.xz")):
        name = "-".join(archive.relative_to(REFERENCE).with_suffix("").with_suffix("").parts)
        with tarfile.open(archive) as tables:
            tables.extractall(folder / name, filter="data")
    for place, path in enumerate([*(path.parent for path in REFERENCE.rglob("study.json")), *more]):
        shutil.copytree(path, folder / f"{path.name}-{place}")
    studies = (path.parent for path in sorted(folder.rglob("study.json")))
    return {study.relative_to(folder).parts[0]: study for study in studies if any(study.glob("runs/*/*/steps.parquet"))}


def code_of(revision: str, folder: Path) -> Path:
    """Extract the packages of a revision of this repository into ``folder``."""
    archive = folder.with_suffix(".tar")
    subprocess.run(["git", "archive", f"--output={archive}", revision, *CODE], cwd=ROOT, check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


def measured(code: Path, studies: Mapping[str, Path]) -> dict[str, Figures]:
    """Rebuild the report of each study, and audit the published tables, with the packages in ``code``."""
    _run(code, [["report", str(study)] for study in studies.values()])
    found = {name: (study / "summary.json").read_text(encoding="utf-8") for name, study in studies.items()}
    for table in sorted((code / PUBLISHED.relative_to(ROOT)).glob("*.yaml")):
        found[f"audit of {table.stem}"] = _run(code, [["audit", str(table), "--json"]])
    return {name: dict(figures(json.loads(text))) for name, text in found.items()}


def _run(code: Path, calls: list[list[str]]) -> str:
    """Call commands of the command line in one process that imports the packages in ``code``; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(calls)], cwd=code, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReportError(f"{code.name}: {' '.join(calls[0])}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", metavar="BASE", help="commit whose figures are right")
    parser.add_argument("head", metavar="HEAD", nargs="?", help="commit to check (default: this checkout)")
    parser.add_argument(
        "--study", metavar="FOLDER", action="append", default=[], type=Path, help="another study, with its tables"
    )
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="harness-figures-") as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        codes = {
            "base": code_of(arguments.base, folder / "base"),
            "head": code_of(arguments.head, folder / "head") if arguments.head else ROOT,
        }
        studies = {side: unpack(folder / f"studies-{side}", arguments.study) for side in codes}
        running = {side: pool.submit(measured, code, studies[side]) for side, code in codes.items()}
        try:
            base, head = (running[side].result() for side in ("base", "head"))
        except ReportError as error:
            print(error, file=sys.stderr)
            return 2
    differences = compare(base, head)
    print("\n".join(lines(differences, len(base), sum(map(len, base.values())))))
    return differences.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
