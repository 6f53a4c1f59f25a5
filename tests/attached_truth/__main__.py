"""``python -m tests.attached_truth --work DIR --out FOLDER [--nanogpt FOLDER]``: are 8 ms found where they are?

Each program runs under ``harness exec`` as it is, with nothing slow and with one stage of its data 8 ms slower a batch
(a sleep that measures itself), with 0 and 2 loader workers. Asked: the stage is found within max(10 %, 0.5 ms) of the
sleep, no other stage grows by more than 0.5 ms, and the phases of each step sum to it in integer nanoseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.study.contract import PHASES
from tests.attached_truth.common import (
    INJECTED_MS,
    NANOGPT,
    PROGRAMS,
    ROOT,
    SLOW_MEMMAP,
    copy_nanogpt,
    environment,
    harness_exec,
    only_study,
    words_of,
    words_of_nanogpt,
)

STAGES = {"read": "read", "tokenize": "tokenize", "collate": "pack"}  # injected into: its name in the tables
WARMUP, STEPS = 10, 80
COLUMNS = ("fetch_ns", *(f"work_{one}_ns" for one in STAGES.values()))


@dataclass(frozen=True)
class Row:
    """One program with one stage slower. Milliseconds a step; ``others_ms``: what the other stages grew by."""

    program: str
    workers: int
    stage: str
    slept_ms: float
    found_ms: float
    others_ms: dict[str, float]
    fetch_ms: float  # what the loop waits more
    sums: bool  # the phases of every step sum to it

    @property
    def holds(self) -> bool:
        near = abs(self.found_ms - self.slept_ms) <= max(0.1 * self.slept_ms, 0.5)
        return near and all(abs(one) <= 0.5 for one in self.others_ms.values()) and self.sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for the studies")
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md and table.json")
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT; without it that program is left out")
    arguments = parser.parse_args()
    rows = list(_rows(arguments.work.absolute(), arguments.nanogpt))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "README.md").write_text(page(rows))
    (arguments.out / "table.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(summary(rows))


def _rows(work: Path, nanogpt: Path | None) -> Iterator[Row]:
    for name in PROGRAMS:
        for workers in (0, 2):
            command = [sys.executable, *words_of(name, workers, WARMUP + STEPS + 20)]
            yield from _of_program(name.removesuffix("_loop"), workers, STAGES, command, work, work, None)
    if nanogpt is not None:
        folder = copy_nanogpt(nanogpt, work)
        command = [sys.executable, *words_of_nanogpt(WARMUP + STEPS + 20)]
        yield from _of_program(NANOGPT, 0, {"read": "read"}, command, work, folder, SLOW_MEMMAP)


def _of_program(
    program: str,
    workers: int,
    stages: dict[str, str],
    command: Sequence[str],
    work: Path,
    folder: Path,
    imported: Path | None,
) -> Iterator[Row]:
    usual, _, whole = _medians_ms(command, None, work / f"{program}-{workers}-none", folder, imported)
    for stage, column in stages.items():
        out = work / f"{program}-{workers}-{stage}"
        found, slept_ms, sums = _medians_ms(command, stage, out, folder, imported)
        more = {name: found[name] - usual[name] for name in COLUMNS}
        own = f"work_{column}_ns"
        others = {name.split("_")[1]: more[name] for name in COLUMNS[1:] if name != own}
        row = Row(program, workers, stage, slept_ms, more[own], others, more["fetch_ns"], sums and whole)
        print(f"{program}, {workers} workers, {stage}: {row.found_ms:.2f} of {slept_ms:.2f} ms", file=sys.stderr)
        yield row


def _medians_ms(
    command: Sequence[str], stage: str | None, out: Path, folder: Path, imported: Path | None
) -> tuple[dict[str, float], float, bool]:
    """Medians of the measured steps, what was slept a batch, and whether the phases of each step sum to its time."""
    log = out / "slept"
    out.mkdir(parents=True)
    limits = ["--warmup", str(WARMUP), "--steps", str(STEPS)]
    harness_exec(out, limits, command, environment(stage, INJECTED_MS, log, ROOT, imported), folder)
    steps = [row for run in only_study(out).runs() if run.steps is not None for row in run.steps.to_pylist()]
    measured = [row for row in steps if not row["warmup"]]
    medians = {name: statistics.median(row[name] or 0 for row in measured) / 1e6 for name in COLUMNS}
    sums = all(sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"] for row in measured)
    return medians, _slept_ms(log, 4 if stage == "read" and imported is None else 1) if stage else 0.0, sums


def _slept_ms(log: Path, parts: int) -> float:
    """Median of what was slept for a batch, which has so many pauses; each line: stage, nanoseconds, process."""
    by_process: dict[str, list[int]] = {}
    for line in log.read_text().splitlines():
        _, took_ns, pid = line.split()
        by_process.setdefault(pid, []).append(int(took_ns))
    batches = [sum(one[at : at + parts]) for one in by_process.values() for at in range(0, len(one), parts)]
    return statistics.median(batches) / 1e6


def summary(rows: Sequence[Row]) -> str:
    holds = sum(row.holds for row in rows)
    worst = max((abs(row.found_ms - row.slept_ms) for row in rows), default=0.0)
    leak = max((abs(one) for row in rows for one in row.others_ms.values()), default=0.0)
    return (
        f"{holds} of {len(rows)} hold: the stage within max(10 %, 0.5 ms) of the sleep (worst {worst:.2f} ms off), "
        f"every other stage within 0.5 ms (worst {leak:.2f} ms), phases of every step sum to it: "
        f"{'yes' if all(row.sums for row in rows) else 'NO'}"
    )


def page(rows: Sequence[Row]) -> str:
    lines = [
        "# 8 ms injected into programs as they are: in which stage does `harness exec` find them?",
        "",
        "Each program runs as it is under `harness exec`, with nothing slow and with one stage of its data 8 ms slower "
        "a batch (a sleep that measures itself). Medians of 80 steps, milliseconds a step, against the run with "
        "nothing slow; what loader workers do counts as work, and reaches the loop as far as it waits for it. "
        "`python -m tests.attached_truth --work DIR --out results/reference/attached-truth --nanogpt FOLDER` (its "
        "train.py unmodified; numpy.memmap is made slow from outside).",
        "",
        summary(rows),
        "",
        "| program | workers | slower | slept ms | found ms | other stages ms | the loop waits ms more | holds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        others = ", ".join(f"{name} {value:+.2f}" for name, value in row.others_ms.items())
        lines.append(
            f"| {row.program} | {row.workers} | {row.stage} | {row.slept_ms:.2f} | {row.found_ms:.2f} | {others} | "
            f"{row.fetch_ms:.2f} | {'yes' if row.holds else '**no**'} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
