"""``python -m tests.campaigns known_truth --pipelines 64 --out FOLDER``.

The whole suite, and its table as markdown and JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from harness.study.store import StudyFolder
from tests.campaigns.known_truth.check import Row, check
from tests.campaigns.known_truth.pipelines import NAME, scenario
from tests.studies import run_study

AT_ONCE = 8  # pipelines of one study: three arms each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=64)
    parser.add_argument("--first", type=int, default=0, help="seed of the first pipeline")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, required=True, help="folder for the studies")
    parser.add_argument("--reuse", action="store_true", help="analyse the studies in the folder again, run nothing")
    parser.add_argument("--out", type=Path, required=True, help="folder for table.md and table.json")
    arguments = parser.parse_args()
    seeds = list(range(arguments.first, arguments.first + arguments.pipelines))
    rows: list[Row] = []
    for start in range(0, len(seeds), AT_ONCE):
        chunk = seeds[start : start + AT_ONCE]
        content = scenario(chunk, arguments.repeats)
        folder = arguments.work / f"{chunk[0]}-{chunk[-1]}"
        found = check(_study(folder, arguments.reuse, partial(run_study, content)), chunk)
        rows += found
        for row in found:
            print(line(row), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.md").write_text(table(rows, arguments.repeats))
    (arguments.out / "table.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(summary(rows))


def _study(folder: Path, reuse: bool, run: Callable[[Path], StudyFolder]) -> StudyFolder:
    done = sorted((folder / NAME).glob("*")) if reuse else []
    return StudyFolder(done[-1]) if done else run(folder)


def summary(rows: list[Row]) -> str:
    """The figures that the suite is asked for."""
    unedited = np.abs([error for row in rows for error in row.unedited])
    resampled = np.abs([error for row in rows for error in row.resampled])
    edited = np.abs([row.edited for row in rows])
    wrong = [row.seed for row in rows if not row.verdict_right]
    false = [row.seed for row in rows if row.false_call]
    ledger = [row.seed for row in rows if not row.ledger_right]
    opened = [row.seed for row in rows if row.left_open]
    gains = sum(row.data_gain for row in rows)
    above = [row.seed for row in rows if row.above_ceiling]
    share = max(
        abs(error) / row.allowed_ms
        for row in rows
        for _, error in (row.worst_starved, row.worst_hidden, row.worst_exposed)
    )
    return "\n".join(
        [
            f"- pipelines: {len(rows)}",
            "- starvation per cause, exposed and hidden per stage within 3 % of the step or 0.3 ms: "
            f"{len(rows) - len(ledger)} of {len(rows)}{f' (not: {ledger})' if ledger else ''}; "
            f"the worst uses {share:.0%} of what is allowed",
            f"- verdict right, {len(rows) - len(wrong)} of {len(rows)}{f' (not: {wrong})' if wrong else ''}: a gain or "
            "loss by its name wherever the true ratio lies outside 3 %, the noise floor and half the width of the "
            "interval for all comparisons of a study together, never by the wrong name; of runs that waited for a core "
            "undecided counts as right",
            f"- undecided though the true ratio lies outside 3 % and the noise floor: {opened or 'none'}; called "
            f"although next to none is declared: {false or 'none'}",
            f"- gains by an edit of the data path: {gains}; measured above the interval of the ceiling: "
            f"{above or 'none'}",
            f"- unedited replay against its own run, {len(unedited)} runs: median {np.median(unedited):.2%} (asked "
            f"2 %), p95 {np.quantile(unedited, 0.95):.2%} (asked 5 %), worst {unedited.max():.2%}",
            f"- the same from resampled durations, as predictions are made: median {np.median(resampled):.2%}, p95 "
            f"{np.quantile(resampled, 0.95):.2%}, worst {resampled.max():.2%}",
            f"- edited replay against a run of the edited pipeline, {len(edited)}: median {np.median(edited):.2%} "
            f"(asked 3 %), p95 {np.quantile(edited, 0.95):.2%} (asked 8 %), worst {edited.max():.2%}",
        ]
    )


def table(rows: list[Row], repeats: int) -> str:
    header = (
        "| seed | workers x prefetch | blocks each step | jitter | step ms: truth, found | starved ms: truth, found | "
        "worst cause | worst hidden | worst exposed | edit | "
        "true ratio | measured | floor | verdict | replay | edited replay |"
    )
    head = [
        "# Known truth on an emulated device",
        "Random pipelines (tests/campaigns/known_truth/pipelines.py), declared costs, run for real by `harness run`; "
        f"truth by an independent simulation of the declaration (tests/campaigns/known_truth/truth.py). {repeats} "
        "blocks of 40 steps. Emulated.",
        "What this machine adds is measured on each pipeline's a-a twin (another process, the same configuration; "
        "tests/campaigns/known_truth/machine.py) and is all that is measured in the truth: it hands a batch over in "
        f"{_range(rows, 'handover')} ms, receives a ready one in {_range(rows, 'receive')} ms, has a worker begin "
        f"{_range(rows, 'request')} ms after it is asked, or {_range(rows, 'turnaround')} ms after the batch before, "
        f"and wakes {_range(rows, 'wake')} ms late (means of a twin; least to most of all pipelines). The loop itself "
        "is taken to need 0.02 ms a phase. A twin that shows a cost fewer than 30 times is "
        "given the mean over the twins of its study of eight. The twins' spans come from the same recorder as the "
        "judged ones: an error that its stamps made alike in both would not show. "
        "Jitter is drawn from declared seeds, the same draws in truth and run.",
        summary(rows),
    ]
    body = [header, "|" + " --- |" * 16, *(line(row) for row in rows)]
    return "\n\n".join(head) + "\n\n" + "\n".join(body) + "\n"


def _range(rows: list[Row], name: str) -> str:
    values = [getattr(row.machine, name) for row in rows if row.pipeline.workers or name == "wake"]
    return f"{min(values):.3f} to {max(values):.3f}"


def line(row: Row) -> str:
    p, truth = row.pipeline, row.truth
    starved = sum(truth.starved.values()), sum(row.starved_ms.values())
    worst, hidden, exposed = row.worst_starved, row.worst_hidden, row.worst_exposed
    mark = "" if row.ledger_right else " **out**"
    floor = "–" if row.noise_floor is None else f"{row.noise_floor:.1%}"
    ratios = f"{row.edit} | {row.true_ratio:.3f} | {row.measured_ratio:.3f} | {floor}"
    verdict = row.verdict if row.verdict_right else f"{row.verdict} **wrong**"
    return (
        f"| {row.seed} | {p.workers} x {p.prefetch} | {'yes' if p.check_finite else 'no'} | {p.jitter:.0%} | "
        f"{truth.step:.2f}, {row.step_ms:.2f} | {starved[0]:.2f}, {starved[1]:.2f} | {worst[0]} {worst[1]:+.2f}{mark} "
        f"| {hidden[0]} {hidden[1]:+.2f} | {exposed[0]} {exposed[1]:+.2f} "
        f"| {ratios} | {verdict} | {np.median(row.unedited):+.2%} | {row.edited:+.2%} |"
    )


if __name__ == "__main__":
    main()
