"""harness plot: draws losses and multiple-choice scores of several runs, with a table of losses, time and cost."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from harness.commands.output import say
from trainer.errors import InputError, visible

if TYPE_CHECKING:
    from pathlib import Path

    from harness.show.curves import LossKind, PlottedRun

LOSS, CHOICES, TABLE = "loss.png", "multiple-choice.png", "runs.json"
PLOT_SCHEMA = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a folder of harness train, a study, or a main.log of llm.c; also behind a URL (s3://BUCKET/FOLDER)",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help=f"folder for {LOSS}, {CHOICES} and {TABLE}")
    parser.add_argument("--only", choices=["training", "validation"], help="draw only these losses")
    parser.add_argument("--x", choices=["steps", "tokens"], default="steps", help="the axis (default: %(default)s)")
    parser.add_argument(
        "--measure", choices=["acc", "acc_norm", "acc_tokens"],
        help="multiple-choice share to draw (default: acc_norm, or acc_tokens if an llm.c log is among the runs)",
    )  # fmt: skip
    parser.add_argument(
        "--tokens-per-step",
        type=float,
        metavar="N",
        help="tokens per step of llm.c logs, which do not record it; for --x tokens",
    )


def plot(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Draw losses and multiple-choice scores of the runs, and print a table and the paths of the pictures."""
    per_step = arguments.tokens_per_step
    if per_step is not None and not 0 < per_step < 1e12:
        raise InputError(f"--tokens-per-step: {per_step:g}; allowed: more than 0, less than 1e12")
    from harness.launch.preparation import check_writable
    from harness.show.curves import MOST_RUNS, loss_figure
    from harness.show.drawing import NARROW, WIDE, drawn, write_picture
    from harness.show.plotted_runs import find_curves, run_records, run_rows
    from harness.show.tables import aligned
    from trainer.files import expanded, write_text

    out = expanded(arguments.out)
    check_writable(out)
    curves = find_curves(arguments.runs, per_step)
    runs = [run.only(arguments.only) for run in curves]
    if arguments.x == "tokens":
        _check_tokens(runs)
    if len(runs) > MOST_RUNS:
        print(f"{len(runs)} runs: only the first {MOST_RUNS} are drawn, to keep them distinct", file=sys.stderr)
    for run in runs[:MOST_RUNS]:
        for line in notes(run, arguments.only):
            print(visible(f"{run.name}: {line}"), file=sys.stderr)
    for line in dict.fromkeys(line for run in curves for line in run.not_counted):
        print(visible(f"not counted: {line}"), file=sys.stderr)
    has_losses = any(run.training.shape[1] or run.validation.shape[1] for run in runs[:MOST_RUNS])
    if has_losses:
        pictures = (loss_figure(runs, arguments.x, sheet) for sheet in (WIDE, NARROW))
        write_picture(out / LOSS, drawn(next(pictures), narrow=next(pictures)))
        say(f"losses: {out / LOSS}")
    elif arguments.only is not None:
        raise InputError(f"--only {arguments.only}: none of the runs has a {arguments.only} loss")
    _draw_choices(arguments, runs, out, has_losses)
    write_text(out / TABLE, json.dumps({"schema": PLOT_SCHEMA, "runs": run_records(curves)}, indent=1) + "\n")
    for line in aligned(run_rows(curves, arguments.measure)):
        say(visible(line))
    say(f"table: {out / TABLE}")
    return 0


def _draw_choices(arguments: argparse.Namespace, runs: list[PlottedRun], out: Path, has_losses: bool) -> None:
    """Draw the runs' multiple-choice scores into ``out``; nothing if no run has any. ``has_losses``: True if a picture
    of losses was drawn. Raises InputError if it is False and no run has a score by the chosen measure (acc, acc_norm or
    acc_tokens).
    """
    from harness.show.curves import MEASURES, MOST_RUNS, best_measure, choices_figure
    from harness.show.drawing import NARROW, WIDE, drawn, write_picture

    scored = [run for run in runs[:MOST_RUNS] if run.choices]
    if scored:
        measure = arguments.measure or best_measure(scored)
        measured = [run for run in scored if any(getattr(choice, measure) is not None for choice in run.choices)]
        for run in scored:
            if run not in measured:
                print(visible(f"{run.name}: its {measure} is unknown, so it is not in {CHOICES}"), file=sys.stderr)
        if not measured and not has_losses:
            raise InputError(f"--measure {measure}: not drawn, because it is unknown for all runs")
        if measured:
            pictures = (choices_figure(measured, measure, arguments.x, sheet) for sheet in (WIDE, NARROW))
            write_picture(out / CHOICES, drawn(next(pictures), narrow=next(pictures)))
            say(f"multiple choice ({MEASURES[measure]}): {out / CHOICES}")


def notes(run: PlottedRun, only: LossKind | None = None) -> list[str]:
    """Return a line per curve or point of a run that the pictures lack. ``only``: kind of losses that is drawn."""
    import numpy as np

    reasons = []
    for kind, values in (("training", run.training), ("validation", run.validation)):
        broken = values[0, ~np.isfinite(values[1])]
        if len(broken):
            reasons.append(
                f"{len(broken):,} of {values.shape[1]:,} {kind} losses are NaN or infinite, the first after "
                f"{int(broken[0]):,} steps: marked by a cross"
            )
    if broken := [
        choice.step + 1 for choice in run.choices if choice.acc_tokens is not None and np.isnan(choice.acc_tokens)
    ]:
        reasons.append(
            f"{len(broken):,} of {len(run.choices):,} multiple-choice shares are NaN, the first after {broken[0]:,} "
            "steps: not drawn"
        )
    if not run.training.shape[1] and only != "validation":
        reasons.append("it has no training losses")
    if not run.validation.shape[1] and not run.choices and only != "training":
        consequence = "nothing of it is drawn" if only == "validation" else "its training loss alone is drawn"
        reasons.append(f"it has no evaluations: {consequence}")
    return reasons


def _check_tokens(runs: list[PlottedRun]) -> None:
    for run in runs:
        if run.tokens is None or not run.tokens.shape[1]:
            raise InputError(
                f"--x tokens: {run.name} does not record the tokens of its steps; give --tokens-per-step for a log "
                "of llm.c (524288 in its GPT-2 124M), or --x steps"
            )
