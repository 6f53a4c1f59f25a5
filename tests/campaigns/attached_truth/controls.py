"""``python -m tests.campaigns attached_truth.controls --work DIR --out FOLDER``.

Do controls of ``harness exec`` find the truth? A plain script whose data and computing sleep for known times, so that
its truth follows from its arguments:

- ideal-data, no workers: every block must find the step without its data work; how far do blocks lie apart?
- dose: data work that the loop waits for costs as much as is added (slope 1), behind two workers nothing (0);
- ``--against`` with the same command twice: how many of the intervals hold 1?
- inline data against two workers: is it decided, and does the interval hold the truth?

Programs start as forks of one process that has imported torch; what is measured begins after that.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from harness.explain.ledger import measure
from harness.explain.statistics import Estimate
from harness.judge.comparisons import Measured
from harness.judge.report_types import ArmReport, Comparison, StudyReport
from harness.judge.study import analyse
from harness.study.store import StudyFolder
from tests.campaigns.attached_truth.common import ROOT, only_study
from tests.commands import fork_servers, harness_and_program

SCRIPT = ROOT / "tests" / "harness" / "attach" / "programs" / "plain.py"
COLLATE_MS, COMPUTE_MS = 4.0, 8.0  # inline: a step of about 12 ms, a third of it data
BLOCKS = 5
IDEAL_SPREAD = 0.03  # asked of blocks
SLOPE_WITHIN = 0.1


@dataclass(frozen=True)
class Outcome:
    """One line of the table."""

    what: str
    asked: str
    found: str
    holds: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the studies")
    parser.add_argument("--out", type=Path, required=True, help="folder for controls.md")
    parser.add_argument("--same", type=int, default=20, help="times that a command is compared with itself")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    outcomes = []
    try:
        for take in (
            partial(_ideal, work),
            partial(_dose, work, 0, 1.0),
            partial(_dose, work, 2, 0.0),
            partial(_decided, work),
            partial(_same, work, arguments.same),
        ):
            outcomes.append(take())
            print(_line(outcomes[-1]), flush=True)
    finally:
        fork_servers.end()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "controls.md").write_text(_page(outcomes))


def _ideal(work: Path) -> Outcome:
    """Step time / that of the ideal-data control, block by block."""
    study = _exec(work / "ideal", _program(0), "--controls", "ideal-data,a-a", "--repeats", str(BLOCKS))
    step_ms: dict[tuple[str, int], float] = {}
    for run in study.runs():
        ledger = measure(run)
        if ledger is not None:
            step_ms[run.record.arm, run.record.block] = ledger.mean_step_ms
    arm = _arm(_report(study), None)
    ratios = [step_ms[arm.name, block] / step_ms[f"{arm.name}+ideal-data", block] for block in range(BLOCKS)]
    spread = (max(ratios) - min(ratios)) / float(np.median(ratios))
    found = f"{_shown(arm.explained.ideal_measured)}, blocks {min(ratios):.3f} to {max(ratios):.3f}: {spread:.1%} apart"
    return Outcome(
        f"ideal-data, inline, {COLLATE_MS:g} ms of data beside {COMPUTE_MS:g} ms",
        f"blocks within {IDEAL_SPREAD:.0%}", found, spread <= IDEAL_SPREAD,
    )  # fmt: skip


def _dose(work: Path, workers: int, truth: float) -> Outcome:
    """The slope of its slowdown injection."""
    program = _program(workers, collate_ms=2 if workers else COLLATE_MS, compute_ms=16 if workers else COMPUTE_MS)
    study = _exec(work / f"dose-{workers}", program, "--controls", "dose,a-a", "--repeats", str(BLOCKS))
    doses = _arm(_report(study), None).explained.doses
    slope = doses[0].slope if doses else None
    holds = slope is not None and abs(slope.median - truth) <= SLOPE_WITHIN
    what = "hidden behind two workers" if workers else "inline"
    found = f"slope {slope.median:.2f} ({slope.ci_low} to {slope.ci_high})" if slope else f"no slope: {doses}"
    if slope is not None and slope.ci_low is not None and slope.ci_high is not None:
        found = f"slope {slope.median:.3f} ({slope.ci_low:.3f} to {slope.ci_high:.3f}), {doses[0].kind}"
    return Outcome(f"dose, {what}", f"{truth:.0f} +- {SLOPE_WITHIN}", found, holds)


def _decided(work: Path) -> Outcome:
    """Inline data of 4 ms, beside 8 ms of computing, against two workers that hide it."""
    measured = _against(work / "decided", _program(0), _program(2))
    truth = (COLLATE_MS + COMPUTE_MS) / COMPUTE_MS
    found = f"{measured.verdict}, {_shown(measured.ratio)}; of the sleeps alone {truth:.2f}x"
    return Outcome("inline data against two workers", "decided: gain", found, measured.verdict == "gain")


def _same(work: Path, times: int) -> Outcome:
    """How many 95 % intervals of a command against itself hold 1."""
    program = _program(0)
    found = [_against(work / f"same-{number}", program, program) for number in range(times)]
    held = sum(_holds_one(one.ratio) for one in found)
    verdicts = sum(one.verdict in ("gain", "loss") for one in found)
    ratios = [one.ratio.median for one in found]
    text = f"{held} of {times} hold 1 (ratios {min(ratios):.3f} to {max(ratios):.3f}); {verdicts} called a gain or loss"
    return Outcome("--against, the same command twice", "at least 19 of 20 hold 1", text, held >= 0.95 * times)


def _against(out: Path, baseline: list[str], candidate: list[str]) -> Measured:
    study = _exec(out, candidate, "--against", " ".join(baseline), "--repeats", str(BLOCKS))
    (comparison,) = (one for one in _report(study).comparisons if isinstance(one, Comparison))
    return comparison.measured


def _holds_one(ratio: Estimate) -> bool:
    return ratio.ci_low is not None and ratio.ci_high is not None and ratio.ci_low <= 1 <= ratio.ci_high


def _program(workers: int, collate_ms: float = COLLATE_MS, compute_ms: float = COMPUTE_MS) -> list[str]:
    times = ["--collate-ms", str(collate_ms), "--compute-ms", str(compute_ms)]
    return [sys.executable, str(SCRIPT), "--steps", "100000", "--epoch", "100000", "--workers", str(workers), *times]


def _exec(out: Path, program: list[str], *options: str) -> StudyFolder:
    out.mkdir(parents=True)
    done = harness_and_program("exec", "--out", str(out), *options, "--", *program)
    if done.returncode:
        sys.exit(f"harness exec {' '.join(options)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return only_study(out)


def _report(study: StudyFolder) -> StudyReport:
    return analyse(study.read_study(), list(study.runs()))


def _arm(report: StudyReport, control: str | None) -> ArmReport:
    return next(arm for arm in report.arms if arm.control == control)


def _shown(one: Estimate | None) -> str:
    if one is None:
        return "not measured"
    low, high = one.ci_low, one.ci_high
    return f"{one.median:.3f}x" + (f" ({low:.3f} to {high:.3f})" if low is not None and high is not None else "")


def _line(one: Outcome) -> str:
    return f"| {one.what} | {one.asked} | {one.found} | {'yes' if one.holds else '**no**'} |"


def _page(outcomes: list[Outcome]) -> str:
    return "\n".join(
        [
            "# Do the controls of `harness exec` find what is known?",
            "",
            "A plain script (tests/harness/attach/programs/plain.py, no line changed) whose data and computing sleep "
            f"for known times; {BLOCKS} blocks of fresh processes each, 60 steps in turns. The dose spins. "
            "`python -m tests.campaigns attached_truth.controls --work DIR --out results/reference/attached-truth`.",
            "",
            "| control | asked | found | holds |",
            "| --- | --- | --- | --- |",
            *map(_line, outcomes),
            "",
        ]
    )


if __name__ == "__main__":
    main()
