"""harness baseline: keeps figures in git by environment, and checks studies against them."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from harness.commands.arguments import add_arm, add_comparing, add_study, limits_of
from harness.commands.compare import read_series, select, show
from harness.commands.exit_codes import read_exit_code
from harness.commands.output import say
from harness.regress import BASELINES
from trainer.errors import InputError

FEW_BLOCKS = 5  # A baseline of fewer blocks has wide intervals.
ACTIONS = {
    "save": "keep a study's figures as the newest session of this environment's baseline",
    "check": "compare a study with the baseline of its environment",
    "list": "every baseline kept, by environment",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in ACTIONS.items():
        action = actions.add_parser(name, help=text)
        if name != "list":
            add_study(action)
            add_arm(action)
        if name == "save":
            action.add_argument(
                "--anew", action="store_true",
                help="compare with this study from now on; earlier ones only show day-to-day variation",
            )  # fmt: skip
        if name == "check":
            add_comparing(action)
        action.add_argument(
            "--baselines", default=BASELINES, metavar="DIR", help="folder of the baselines (default: %(default)s)"
        )


def baseline(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Run the subcommand of ``harness baseline`` that was given (save, check or list), and return its exit code."""
    folder = Path(arguments.baselines)
    if arguments.action == "list":
        return _list(folder)
    return _save(arguments, folder) if arguments.action == "save" else _check(arguments, folder)


def _save(arguments: argparse.Namespace, folder: Path) -> int:
    from harness.explain.policy import MIN_BLOCKS
    from harness.machine.environment import is_ignored
    from harness.regress import baselines
    from harness.regress.decision import read_share
    from harness.regress.policy import APART_WITHIN
    from harness.regress.text import kept_note

    series = read_series(Path(arguments.study))
    names = select(series, arguments.arm, arguments.study)
    for name in names:
        if len(series[name].blocks) < MIN_BLOCKS:
            raise InputError(
                f"{arguments.study}: {name} has {len(series[name].blocks)} finished blocks; "
                f"a baseline needs {MIN_BLOCKS}"
            )
        if series[name].diverged_runs:
            raise InputError(
                f"{arguments.study}: {name}: the loss of {series[name].diverged_runs} runs diverged, so it cannot be "
                "a baseline; keep one of a training that learns"
            )
    notes = []
    for name in names:
        blocks = len(series[name].blocks)
        if blocks < FEW_BLOCKS:
            text = f"{name}: {blocks} blocks, so checks may stay undecided; run the study with --repeats {FEW_BLOCKS}"
            print(f"warning: {text}", file=sys.stderr)
        path = baselines.save(folder, series[name], anew=arguments.anew)
        say(str(path))
        notes.append(kept_note(baselines.read(path), read_share(APART_WITHIN, APART_WITHIN)))
    if is_ignored(folder):
        notes.append(f"git ignores {folder}, so no other clone has it: git add -f {shlex.quote(str(folder))}")
    for note in dict.fromkeys(notes):
        print(f"note: {note}", file=sys.stderr)
    return 0


def _check(arguments: argparse.Namespace, folder: Path) -> int:
    from harness.regress import baselines
    from harness.regress.across import Across, compare_series
    from harness.regress.decision import WhyUndecided, nothing

    limits, undecided = limits_of(arguments), read_exit_code(arguments.undecided_exit)
    series = read_series(Path(arguments.study))
    names = select(series, arguments.arm, arguments.study)
    across, missing = [], []
    for name in names:
        try:
            kept = baselines.find(folder, series[name])
        except baselines.NoBaselineError as error:
            missing.append(error)
            across.append(
                Across(name, nothing(name, "baseline", name, limits.step, WhyUndecided("no baseline", (str(error),))))
            )
        else:
            across.append(compare_series(kept.series, series[name], limits, arguments.allow, kept.days))
    if len(missing) == len(names):
        raise missing[0]
    return show(across, arguments.json, undecided)


def _list(folder: Path) -> int:
    from statistics import median

    from harness.regress import baselines
    from harness.show.words import count

    listed = list(baselines.every(folder))
    if not listed:
        say(f"no baseline under {folder}; keep one: {baselines.SAVE}")
    for key in dict.fromkeys(saved.key for saved in listed):
        group = [saved for saved in listed if saved.key == key]
        environment = baselines.environment_of(group[0].series)
        shown = ", ".join(f"{name} {value}" for name, value in environment.items() if value is not None)
        say(f"{key}: {shown}")
        for saved in group:
            step_ms = saved.series.part_ms["step"]
            commit = saved.series.environment.get("git_commit")
            say(
                f"  {saved.series.scenario}, {saved.series.arm}: {median(step_ms):.3f} ms per step, "
                f"{len(step_ms)} blocks, commit {commit}, {saved.series.created_utc}, "
                f"{len(saved.days.level)} of {count(len(saved.sessions), 'session')} of this speed"
            )
    return 0
