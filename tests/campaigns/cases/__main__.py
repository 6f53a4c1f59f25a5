"""``python -m tests.campaigns.cases --out FOLDER [--shared FOLDER] [NAME ...]``: does exec name the cause?

Each case is a training that is slow for one reason, and the same without it. Both run by turns, alone, for the truth:
milliseconds of a step by the clock. Then both run under ``harness exec``. Asked of the slow one: the first diagnosis
has the right kind and place, and its cost is within 20 % of the truth or 1 ms. Asked of the other: the first diagnosis
is not that, or costs less than 5 % of a step.

``--shared``: a folder of further cases, each with a slow.py and a fixed.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIMIT_S = 300.0  # of one run
TIMES = 3  # that each runs alone
WITHIN_SHARE, WITHIN_MS = 0.2, 1.0  # of the truth
FALSE_SHARE = 0.05  # of a step


@dataclass(frozen=True)
class Case:
    """What is slow. ``kinds``: diagnoses that are right. ``place``: part of the name or the line that it must have."""

    kinds: tuple[str, ...]
    place: str = ""


OURS = {
    "anomaly": Case(("setting", "own code")),
    "crowded": Case(("cores too few",)),
    "evaluating": Case(("evaluation-bound",)),
    "formatting": Case(("input-bound",), "formatting.py"),
    "healthy": Case(("compute-bound",)),
    "hooks": Case(("own code",), "register_hook"),
    "logger": Case(("own code",), "json.dump"),
    "norms": Case(("own code",), "histc"),
    "objects": Case(("input-bound",), "transfer"),
    "profiler": Case(("setting", "own code")),
    "python": Case(("own code",), "token"),
    "restart": Case(("input-bound",), "restart"),
    "rows": Case(("input-bound",), "Rows.__getitem__"),
    "synced": Case(("checkpoint-bound",), "torch.save"),
    "threads": Case(("cores too few",)),
    "tokenizing": Case(("input-bound",), "tokenize"),
    "unequal": Case(("input-bound",), "read"),
    "window": Case(("input-bound",), "Uneven.__getitem__"),
    "workers": Case(("input-bound",), "read"),
}
SHARED = {
    "checkpoint": Case(("checkpoint-bound",), "slow.py"),
    "evals": Case(("evaluation-bound",)),
    "everyN": Case(("input-bound",), "read"),
    "gc": Case(("garbage collection",)),
    "growing": Case(("growing", "own code"), "slow.py"),
    "inmemory": Case(("input-bound",), "read"),
    "padding": Case(("padding",)),
    "recompile": Case(("recompiling",)),
    "sampler": Case(("input-bound",), "sampler"),
    "shards": Case(("input-bound",), "read"),
}


@dataclass(frozen=True)
class Found:
    """The first diagnosis of a program."""

    kind: str
    place: str
    ms: float
    share: float
    step_ms: float


@dataclass(frozen=True)
class Row:
    """One case. Milliseconds a step by the clock, alone; what exec says of both variants."""

    name: str
    slow_ms: float
    fixed_ms: float
    slow: Found
    fixed: Found
    kind_is_right: bool
    place_is_right: bool
    size_is_right: bool
    false_of_fixed: bool


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.cases")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shared", type=Path)
    given = parser.parse_args(arguments)
    cases = OURS | (SHARED if given.shared else {})
    if unknown := set(given.names) - set(cases):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; allowed: {', '.join(cases)}")
    given.out.mkdir(parents=True, exist_ok=True)
    rows = {one["name"]: one for one in _written(given.out)}
    for name in given.names or cases:
        words = {
            variant: (
                [str(HERE / "programs" / f"{name}.py"), variant]
                if name in OURS
                else [str(given.shared.resolve() / name / f"{variant}.py")]
            )
            for variant in ("slow", "fixed")
        }
        row = measured(name, cases[name], words)
        print(_line(asdict(row)), flush=True)
        rows[name] = asdict(row)
        (given.out / "rows.json").write_text(json.dumps([rows[one] for one in sorted(rows)], indent=1) + "\n")
        (given.out / "README.md").write_text(page([rows[one] for one in sorted(rows)]))
    return 0


def measured(name: str, case: Case, words: dict[str, list[str]]) -> Row:
    with tempfile.TemporaryDirectory(prefix="harness-cases-") as folder:
        walls: dict[str, list[float]] = {"slow": [], "fixed": []}
        for _ in range(TIMES):
            for variant, command in words.items():
                walls[variant].append(_wall_ms([sys.executable, *command], Path(folder)))
        slow_ms, fixed_ms = (statistics.median(walls[one]) for one in ("slow", "fixed"))
        slow, fixed = (_found(words[one], Path(folder, one)) for one in ("slow", "fixed"))
    kind, place = slow.kind in case.kinds, case.place in slow.place
    truth_ms = slow_ms - fixed_ms
    size = name == "healthy" or abs(slow.ms - truth_ms) <= max(WITHIN_MS, WITHIN_SHARE * truth_ms)
    same = fixed.kind in case.kinds and case.place in fixed.place
    false = name != "healthy" and same and fixed.kind != "compute-bound" and fixed.share >= FALSE_SHARE
    return Row(name, slow_ms, fixed_ms, slow, fixed, kind, kind and place, kind and place and size, false)


def _wall_ms(command: Sequence[str], folder: Path) -> float:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    (wall,) = re.findall(r"^WALL ([\d.]+) ms/step", done.stdout, re.MULTILINE)
    return float(wall)


def _found(words: Sequence[str], folder: Path) -> Found:
    folder.mkdir()
    command = [sys.executable, "-m", "harness", "exec", "--out", str(folder / "studies"), "--", sys.executable, *words]
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[2])}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=LIMIT_S, check=True)
    (summary,) = folder.glob("studies/*/*/summary.json")
    arms: list[dict[str, Any]] = [one for one in json.loads(summary.read_text())["arms"].values() if one["diagnoses"]]
    arm = arms[0]
    first = arm["diagnoses"][0]
    part = first["part"]
    place = " ".join(str(part[key]) for key in ("name", "code", "called"))
    return Found(first["kind"], place, first["ms"]["median"], first["share"], arm["wall"]["step_ms"]["median"])


def _written(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rows.json"
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown of all rows."""
    right = {key: sum(row[key] for row in rows) for key in ("kind_is_right", "place_is_right", "size_is_right")}
    return "\n".join([
        "# What slows trainings, and does the harness see it?",
        "",
        f"Of {len(rows)} trainings that are slow for one known reason, `harness exec` names the kind of cause in "
        f"{right['kind_is_right']}, its place, too, in {right['place_is_right']}, and its cost within 20 % or 1 ms in "
        f"{right['size_is_right']}. It names the cause in {sum(row['false_of_fixed'] for row in rows)} without it.",
        "",
        "Truth: both variants run by turns, three times each, alone; medians. Programs: "
        "[tests/campaigns/cases](../../../tests/campaigns/cases). Not run on a GPU.",
        "",
        "| case | slow, fixed: ms a step | diagnosis of the slow one | ms | kind, place, size | of the fixed one |",
        "| --- | --- | --- | ---: | --- | --- |",
        *(_line(row) for row in rows),
        "",
    ])  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    marks = ", ".join("yes" if row[key] else "no" for key in ("kind_is_right", "place_is_right", "size_is_right"))
    slow, fixed = row["slow"], row["fixed"]
    place = slow["place"].split(" ")[0]
    return (
        f"| {row['name']} | {row['slow_ms']:.1f}, {row['fixed_ms']:.1f} | {slow['kind']}: {place} | {slow['ms']:.1f} "
        f"| {marks} | {fixed['kind']}, {100 * fixed['share']:.0f} % |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
