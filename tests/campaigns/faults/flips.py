"""Flipped bits in the files of a finished study, one at a time: is each seen, or are the figures the same?

``python -m tests.campaigns faults.flips --count 60``: N flips in each kind of file (steps, spans and samples tables,
run.json, study.json), spread over all runs. After each flip ``harness report`` runs on the damaged copy. Asked: it ends
with 0, 1 or 2, without a traceback, in time; and its figures are those of the undamaged study, or the report (or its
one line) names the damage. Pictures are left out, as they take most of the time.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from harness.show.drawing import Picture
from tests.campaigns.faults.common import Counts, Ended, finished_study, forked, parser, workplace

LIMIT_S = 60.0
FILES = ("steps.parquet", "spans.parquet", "samples.parquet", "run.json", "study.json")
PICTURE = Picture(b"\x89PNG\r\n\x1a\n", '<svg viewBox="0 0 1 1"></svg>')


def figures(study: Path) -> tuple[dict[str, Any], Any]:
    """What summary.json says: (every number and verdict by its place, all of it with its words)."""
    content = json.loads((study / "summary.json").read_bytes())
    kept = {key: content.get(key) for key in ("schema", "scenario", "status", "arms", "comparisons", "emulated")}
    return dict(_numbers(kept, "")), kept


def _numbers(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(inner, f"{at}.{key}".lstrip("."))
    elif not isinstance(value, str) or at.rpartition(".")[2] in ("status", "verdict", "scenario"):
        yield at, value


def without_pictures() -> None:
    mock.patch("harness.show.plots.drawn", return_value=PICTURE).start()


def copy_of(study: Path, to: Path) -> Path:
    """A copy whose files are links, but for those that a report rewrites."""
    shutil.rmtree(to, ignore_errors=True)

    def link(source: str, target: str) -> None:
        if Path(source).suffix in (".json", ".parquet"):
            shutil.copyfile(source, target)
        else:
            os.link(source, target)

    shutil.copytree(study, to, copy_function=link, ignore=shutil.ignore_patterns("plots", "summary.*", "timeline*"))
    return to


def one_flip(
    study: Path, copy: Path, name: str, chance: random.Random, known: tuple[dict[str, Any], Any], counts: Counts
) -> None:
    damaged = copy_of(study, copy)
    paths = [damaged / name] if name == "study.json" else sorted(damaged.glob(f"runs/*/*/{name}"))
    path = chance.choice(paths)
    content = bytearray(path.read_bytes())
    at, bit = chance.randrange(len(content)), chance.randrange(8)
    around = bytes(content[max(0, at - 30) : at + 30])
    content[at] ^= 1 << bit
    path.write_bytes(content)
    ended = forked(["report", str(damaged)], LIMIT_S, without_pictures)
    what = f"{path.relative_to(damaged)} byte {at} bit {bit}"
    if path.suffix == ".json":
        what += f" ({around!r} -> {chr(content[at])!r})"
    if ended.problem is not None or ended.code not in (0, 1, 2):
        counts.bad(f"{name}: {ended.problem or f'exit code {ended.code}'}", f"{what}\n{ended.err[-2500:]}")
    elif ended.code != 0:
        counts.good(f"{name}: refused in a line") if _one_line(ended) else counts.bad(f"{name}: many lines", ended.err)
    elif _named(damaged, ended):
        counts.good(f"{name}: seen, in the report")
    elif (now := figures(damaged))[0] != known[0]:
        counts.bad(f"{name}: silent change", f"{what}: {_difference(known[0], now[0])}")
    else:
        counts.good(f"{name}: same figures{'' if now == known else ', other words'}")


def _one_line(ended: Ended) -> bool:
    return len(ended.err.strip().splitlines()) == 1


def _named(study: Path, ended: Ended) -> bool:
    """Whether the report says that something is wrong with a run."""
    text = (study / "summary.md").read_text(errors="replace") + ended.out
    return any(word in text for word in ("failed", "damaged", "not readable", "cannot be read"))


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first number that differs."""
    key = next(key for key in [*before, *after] if before.get(key) != after.get(key))
    return f"{key}: {before.get(key)!r} -> {after.get(key)!r}"


def main() -> int:
    options = parser(__doc__, 60)
    options.add_argument("--file", action="append", choices=FILES, help="only this kind of file; may be repeated")
    arguments = options.parse_args()
    counts = Counts("flipped bits")
    chance = random.Random(arguments.seed)
    with workplace() as folder:
        study, _ = finished_study(folder)
        clean = copy_of(study, folder / "copy")
        ended = forked(["report", str(clean)], LIMIT_S, without_pictures)
        if ended.code != 0:
            sys.exit(f"the study is not even reported undamaged: {ended.err[-3000:]}")
        known = figures(clean)
        for name in arguments.file or FILES:
            for _ in range(arguments.count):
                one_flip(study, folder / "copy", name, chance, known, counts)
    return counts.finish()


if __name__ == "__main__":
    sys.exit(main())
