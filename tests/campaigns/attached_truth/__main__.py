"""``python -m tests.campaigns attached_truth --work DIR --out FOLDER [--nanogpt FOLDER] [--transformers FOLDER]``.

Are 8 ms found where they are?

Each program runs under ``harness exec`` as it is, with nothing slow and with one stage of its data 8 ms slower a batch
(a sleep that measures itself), with 0 and 2 loader workers. Asked: the stage is found within max(10 %, 0.5 ms) of the
sleep, no other stage grows by more than 0.5 ms, and the phases of each step sum to it in integer nanoseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.study.contract import PHASES
from tests.campaigns.attached_truth import language_modeling
from tests.campaigns.attached_truth.common import (
    HERE,
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
TIMES_BY_TURNS = 8  # as many steps of a program that is slow by turns: 15 pairs of turns
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
    source: str | None = None  # of a script of somebody else's: what git names its content by
    load: float | None = None  # average load of the machine meanwhile, in processes that run or wait for a core
    steps: int = STEPS  # that were measured

    @property
    def holds(self) -> bool:
        near = abs(self.found_ms - self.slept_ms) <= max(0.1 * self.slept_ms, 0.5)
        return near and all(abs(one) <= 0.5 for one in self.others_ms.values()) and self.sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for the studies")
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md and table.json")
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT; without it that program is left out")
    parser.add_argument("--transformers", type=Path, help="its examples/pytorch/language-modeling; or left out")
    parser.add_argument("--only", help="run programs whose name contains this; rows of others stay as OUT has them")
    parser.add_argument("--steps", type=int, default=STEPS, help="measured of each run (default: %(default)s)")
    arguments = parser.parse_args()
    programs = _programs(arguments.work.absolute(), arguments.nanogpt, arguments.transformers, arguments.steps)
    rows = kept_rows(arguments.out, arguments.only)
    for program in programs:
        if arguments.only is None or arguments.only in program.name:
            rows += _of_program(program, arguments.work.absolute(), arguments.steps)
            write(arguments.out, rows)
    print(summary(rows))


@dataclass(frozen=True)
class Program:
    """A program to run with nothing slow, and with each of ``stages`` slower (its name, and that in the tables)."""

    name: str
    workers: int
    command: Sequence[str]
    folder: Path
    stages: Mapping[str, str]
    imported: Path | None = None  # folder of the sitecustomize that makes it slow from outside
    environment: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None
    by_turns: bool = False  # the stage is slower in every other turn of one run, which nothing else is compared with
    at_once: Mapping[str, int] = field(default_factory=dict)  # by stage: batches that it works for at a time, if not 1


def kept_rows(out: Path, only: str | None) -> list[Row]:
    """The rows in ``out`` of programs that do not run now."""
    if only is None or not (out / "table.json").exists():
        return []
    rows = [Row(**row) for row in json.loads((out / "table.json").read_text())]
    return [row for row in rows if only not in row.program]


def write(out: Path, rows: Sequence[Row]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(page(rows))
    (out / "table.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _programs(work: Path, nanogpt: Path | None, transformers: Path | None, measured: int) -> Iterator[Program]:
    steps = WARMUP + measured + 20
    for name in PROGRAMS:
        for workers in (0, 2):
            command = [sys.executable, *words_of(name, workers, steps)]
            yield Program(name.removesuffix("_loop"), workers, command, work, STAGES)
    if nanogpt is not None:
        folder = copy_nanogpt(nanogpt, work)
        command = [sys.executable, *words_of_nanogpt(steps)]
        yield Program(NANOGPT, 0, command, folder, {"read": "read"}, SLOW_MEMMAP)
    if transformers is not None:
        yield from transformers_programs(transformers, work / "language-modeling", steps)


def transformers_programs(examples: Path, folder: Path, steps: int) -> Iterator[Program]:
    """run_clm.py, which tokenizes before it trains or, with --streaming, meanwhile."""
    environment = language_modeling.prepare(folder)
    blob = language_modeling.blob(examples)
    for streaming in (False, True):
        name = f"transformers {language_modeling.SCRIPT}{' --streaming' if streaming else ''}"
        stages = {stage: column for stage, column in STAGES.items() if streaming or stage != "tokenize"}
        for workers in (0, 2):
            most = steps * (TIMES_BY_TURNS if streaming else 1)
            command = language_modeling.command(examples.absolute(), most, workers, streaming)
            imported = HERE / "slow_transformers"
            at_once = dict.fromkeys(("read", "tokenize"), language_modeling.BATCHES_AT_ONCE) if streaming else {}
            variables = {**environment, "SLOW_BY_TURNS": "1" if streaming else ""}
            yield Program(name, workers, command, folder, stages, imported, variables, blob, streaming, at_once)


def _of_program(program: Program, work: Path, steps: int) -> Iterator[Row]:
    place = f"{program.name}-{program.workers}".replace(" ", "-")
    usual, whole = ({}, True) if program.by_turns else _usual_ms(_run(program, None, steps, work / f"{place}-none"))
    for stage, column in program.stages.items():
        out = work / f"{place}-{stage}"
        measured = _run(program, stage, steps, out)
        if program.by_turns:
            more, sums = _more_by_turns_ms(measured)
        else:
            found, sums = _usual_ms(measured)
            more = {name: found[name] - usual[name] for name in COLUMNS}
        pauses = 4 if stage == "read" and program.imported is None else 1
        own = f"work_{column}_ns"
        row = Row(
            program.name,
            program.workers,
            stage,
            _slept_ms(out / "slept", pauses) / program.at_once.get(stage, 1),
            more[own],
            {name.split("_")[1]: more[name] for name in COLUMNS[1:] if name != own},
            more["fetch_ns"],
            sums and whole,
            program.source,
            round(os.getloadavg()[0], 1),
            len(measured),
        )
        print(f"{place}, {stage}: {row.found_ms:.2f} of {row.slept_ms:.2f} ms", file=sys.stderr)
        yield row


def _run(program: Program, stage: str | None, count: int, out: Path) -> list[dict[str, Any]]:
    """The measured steps of a run with this stage slower, in their order."""
    out.mkdir(parents=True)
    slow_ms = INJECTED_MS * program.at_once.get(stage or "", 1)
    variables = environment(stage, slow_ms, out / "slept", ROOT, program.imported) | dict(program.environment)
    limits = ["--warmup", str(WARMUP), "--steps", str(count * TIMES_BY_TURNS if program.by_turns else count)]
    harness_exec(out, limits, program.command, variables, program.folder)
    tables = [run.steps.to_pylist() for run in only_study(out).runs() if run.steps is not None]
    return sorted((row for table in tables for row in table if not row["warmup"]), key=lambda row: row["step"])


def _usual_ms(measured: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], bool]:
    """Medians of the steps, and whether the phases of each sum to its time."""
    return {name: statistics.median(row[name] or 0 for row in measured) / 1e6 for name in COLUMNS}, _sums(measured)


def _more_by_turns_ms(measured: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], bool]:
    """What the slow turns took more a step than the usual ones before them: medians over these pairs."""
    turns: dict[int, list[Mapping[str, Any]]] = {}
    for row in measured:
        turns.setdefault((row["step"] + language_modeling.AHEAD) // language_modeling.BATCHES_AT_ONCE, []).append(row)
    whole = {turn: rows for turn, rows in turns.items() if len(rows) == language_modeling.BATCHES_AT_ONCE}
    means = {
        turn: {name: statistics.fmean(row[name] or 0 for row in rows) for name in COLUMNS}
        for turn, rows in whole.items()
    }
    pairs = [(means[turn], means[turn + 1]) for turn in means if turn % 2 == 0 and turn + 1 in means]
    more = {name: statistics.median(slow[name] - usual[name] for usual, slow in pairs) / 1e6 for name in COLUMNS}
    return more, _sums(measured)


def _sums(measured: Sequence[Mapping[str, Any]]) -> bool:
    return all(sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"] for row in measured)


def _slept_ms(log: Path, parts: int) -> float:
    """Median of what was slept for a batch, which has so many pauses; each line: stage, nanoseconds, process."""
    by_process: dict[str, list[int]] = {}
    for line in log.read_text().splitlines():
        _, took_ns, pid = line.split()
        by_process.setdefault(pid, []).append(int(took_ns))
    batches = [sum(one[at : at + parts]) for one in by_process.values() for at in range(0, len(one), parts)]
    return statistics.median(batches) / 1e6


def _counted(rows: Sequence[Row]) -> str:
    """How many steps were measured of a run, and of which program another number."""
    usual = statistics.mode(row.steps for row in rows) if rows else STEPS
    others = sorted({(row.program, row.steps) for row in rows if row.steps != usual})
    named = ", ".join(f"{steps} of {program}" for program, steps in others)
    return f"{usual} steps" + (f" ({named})" if named else "")


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
        f"a batch (a sleep that measures itself). Medians of {_counted(rows)}, "
        "in milliseconds a step, "
        "against the run with nothing slow; what loader workers do counts as work, and reaches the loop as far as it "
        "waits for it. "
        "`python -m tests.campaigns attached_truth --work DIR --out results/reference/attached-truth --nanogpt FOLDER "
        "--transformers FOLDER` (their train.py and run_clm.py unmodified: numpy.memmap, and what run_clm.py imports, "
        "are made slow from outside; with --streaming it tokenizes while it trains).",
        "",
        summary(rows),
        "",
        "| program | workers | slower | slept ms | found ms | other stages ms | loop waits ms more | load | holds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        others = ", ".join(f"{name} {value:+.2f}" for name, value in row.others_ms.items())
        lines.append(
            f"| {row.program} | {row.workers} | {row.stage} | {row.slept_ms:.2f} | {row.found_ms:.2f} | {others} | "
            f"{row.fetch_ms:.2f} | {'-' if row.load is None else row.load} | {'yes' if row.holds else '**no**'} |"
        )
    lines += [
        "",
        "load: average load of the machine at the end of the run; -: not noted.",
        f"--streaming makes {language_modeling.BATCHES_AT_ONCE} batches at a time, on cores as it then finds them. "
        "So every other time is slower, within one run: medians of what such a turn's mean step took more than that of "
        "the turn before it.",
    ]
    for source in dict.fromkeys(row.source for row in rows if row.source):
        lines.append(f"{language_modeling.SCRIPT}: git blob {source}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
