"""``python -m tests.campaigns attached_truth.ranks --work DIR --out FOLDER``.

Two ranks under torchrun, the data of one is slow. What ``harness exec`` predicts of one run (no rank has data work)
beside what its ideal-data control measures: the same program again, which gets its first batches over and over, in
fresh processes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.explain.statistics import Estimate
from harness.judge.study import analyse
from tests.campaigns.attached_truth.common import ROOT, environment, harness_exec, only_study, words_of

SLOW_MS = 20
CASES = (("read", 0), ("tokenize", 0), ("collate", 0), ("tokenize", 2))  # stage, loader workers of each rank
STEPS, BLOCKS = 200, 5
WITHIN = 0.10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the studies")
    parser.add_argument("--out", type=Path, required=True, help="folder for ranks.md")
    parser.add_argument("--only", choices=list(dict.fromkeys(stage for stage, _ in CASES)), help="one stage")
    parser.add_argument("--steps", type=int, default=STEPS, help="measured of the run alone (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="of the control (default: %(default)s)")
    arguments = parser.parse_args()
    lines = [
        "# Two ranks, the data of rank 1 slow: predicted beside measured",
        "",
        f"DDP over gloo under torchrun, {SLOW_MS} ms slower a batch in rank 1 alone. Predicted: of one run under "
        "`harness exec`, without any data work. Measured: its ideal-data control (`--controls ideal-data`, "
        f"{arguments.blocks} blocks of fresh processes). `python -m tests.campaigns attached_truth.ranks`.",
        "",
        "| slower in rank 1 | workers | named | step ms | predicted | measured | off | the first sentence |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for number, (stage, workers) in enumerate(CASES):
        if arguments.only not in (None, stage):
            continue
        work = arguments.work.absolute() / str(number)
        lines.append(_row(work, stage, workers, arguments.steps, arguments.blocks))
        print(lines[-1], flush=True)
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "ranks.md").write_text("\n".join(lines) + "\n")


def _row(work: Path, stage: str, workers: int, steps: int, blocks: int) -> str:
    said = _exec(work / "alone", stage, workers, 10 + steps, ["--warmup", "10"])
    controls = ["--controls", "ideal-data", "--repeats", str(blocks), "--steps", "60", "--interleave", "runs"]
    _exec(work / "controls", stage, workers, 100_000, controls)
    alone, ideal = (
        analyse(one.read_study(), list(one.runs())) for one in map(only_study, (work / "alone", work / "controls"))
    )
    measured = next(arm.explained.ideal_measured for arm in ideal.arms if arm.control is None)
    named = alone.group.slowest if alone.group else None
    predicted = alone.group.without_data if alone.group else None
    step_ms = next((arm.totals.step_ms for arm in alone.arms if arm.name == named), None)
    off = predicted.median / measured.median - 1 if predicted and measured else None
    error = "-" if off is None else f"{off:+.1%}{'' if abs(off) <= WITHIN else ' **out**'}"
    step = "-" if step_ms is None else f"{step_ms.median:.1f}"
    figures = f"{step} | {_shown(predicted)} | {_shown(measured)} | {error}"
    return f"| {stage} | {workers} | {named or '**nobody**'} | {figures} | {said} |"


def _shown(one: Estimate | None) -> str:
    if one is None:
        return "-"
    low, high = one.ci_low, one.ci_high
    return f"{one.median:.2f}x" + (f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else "")


def _exec(out: Path, stage: str, workers: int, steps: int, options: Sequence[str]) -> str:
    """Run it under ``harness exec``; the first sentence of what it prints."""
    out.mkdir(parents=True)
    torchrun = str(Path(sys.executable).with_name("torchrun"))  # of this environment, whatever PATH says
    launcher = [torchrun, "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    program = [*launcher, *words_of("ddp_loop", workers, steps)]
    printed = harness_exec(out, options, program, environment(stage, SLOW_MS, out / "slept", ROOT))
    text = " ".join(printed.split())
    place = text.find("2 ranks: ")
    return text[place:].partition(". ")[0] if place >= 0 else ""


if __name__ == "__main__":
    main()
