"""harness plot: draws the losses of several runs over one another, and what they answered of multiple choice."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from harness.commands.output import say
from trainer.errors import InputError, visible

if TYPE_CHECKING:
    from harness.report.run_curves import PlottedRun

LOSS, CHOICES = "loss.png", "multiple-choice.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs, where the pictures go, and what the axes are."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a folder of harness train, a study, or a main.log of llm.c"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help=f"the folder that gets {LOSS} and {CHOICES}")
    parser.add_argument("--x", choices=["steps", "tokens"], default="steps", help="the axis (default: %(default)s)")
    parser.add_argument(
        "--measure", choices=["acc", "acc_norm", "acc_tokens"],
        help="of multiple choice (default: acc_norm, or acc_tokens where an llm.c log is among the runs)",
    )  # fmt: skip
    parser.add_argument(
        "--tokens-per-step", type=float, metavar="N", help="of the llm.c logs, which do not say it; for --x tokens"
    )


def plot(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Draw what there is; say where it lies, and which run has no part in a picture."""
    per_step = arguments.tokens_per_step
    if per_step is not None and not 0 < per_step < 1e12:
        raise InputError(f"--tokens-per-step: {per_step:g}; allowed: more than 0")
    from harness.launch.preparation import check_writable
    from harness.report.curve_sources import find_curves
    from harness.report.drawing import drawn
    from harness.report.run_curves import MEASURES, MOST_RUNS, best_measure, choices_figure, loss_figure
    from trainer.files import expanded, write_bytes

    out = expanded(arguments.out)
    check_writable(out)
    runs = find_curves(arguments.runs, per_step)
    if arguments.x == "tokens":
        _check_tokens(runs)
    if len(runs) > MOST_RUNS:
        print(f"{len(runs)} runs: the first {MOST_RUNS} are drawn, as more cannot be told apart", file=sys.stderr)
    for run in runs[:MOST_RUNS]:
        for line in notes(run):
            print(visible(f"{run.name}: {line}"), file=sys.stderr)
    has_losses = any(run.training.shape[1] or run.validation.shape[1] for run in runs[:MOST_RUNS])
    if has_losses:
        write_bytes(out / LOSS, drawn(loss_figure(runs, arguments.x)).png)
        say(f"losses: {out / LOSS}")
    asked = [run for run in runs[:MOST_RUNS] if run.choices]
    if asked:
        measure = arguments.measure or best_measure(asked)
        known = [run for run in asked if any(getattr(one, measure) is not None for one in run.choices)]
        for run in asked:
            if run not in known:
                print(
                    visible(f"{run.name}: its {measure} is not known, so it is left out of {CHOICES}"), file=sys.stderr
                )
        if not known and not has_losses:
            raise InputError(f"--measure {measure}: nothing is drawn, as it is not known of any of the runs")
        if known:
            write_bytes(out / CHOICES, drawn(choices_figure(known, measure, arguments.x)).png)
            say(f"multiple choice ({MEASURES[measure]}): {out / CHOICES}")
    return 0


def notes(run: PlottedRun) -> list[str]:
    """What of it is not drawn, a line each."""
    import numpy as np

    found = []
    for what, values in (("training", run.training), ("validation", run.validation)):
        broken = values[0, ~np.isfinite(values[1])]
        if len(broken):
            found.append(
                f"{len(broken):,} of {values.shape[1]:,} {what} losses are NaN or infinite, the first after "
                f"{int(broken[0]):,} steps: marked by a cross"
            )
    if broken := [one.step + 1 for one in run.choices if one.acc_tokens is not None and np.isnan(one.acc_tokens)]:
        found.append(
            f"{len(broken):,} of {len(run.choices):,} multiple-choice shares are NaN, the first after {broken[0]:,} "
            "steps: not drawn"
        )
    if not run.training.shape[1]:
        found.append("it has no training losses")
    if not run.validation.shape[1] and not run.choices:
        found.append("it has no evaluations: its training loss alone is drawn")
    return found


def _check_tokens(runs: list[PlottedRun]) -> None:
    for run in runs:
        if run.tokens is None or not run.tokens.shape[1]:
            raise InputError(
                f"--x tokens: {run.name} does not say how many tokens its steps had; give --tokens-per-step for a log "
                "of llm.c (524288 in its GPT-2 124M), or --x steps"
            )
