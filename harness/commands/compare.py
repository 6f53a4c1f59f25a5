"""harness compare: compares two studies of different times, if their environments allow it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import STUDY_HELP, add_arm, add_comparing, limits_of, study_path
from harness.commands.exit_codes import of_verdict, read_exit_code
from harness.commands.output import say
from harness.regress import BASELINES
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.regress.across import Across
    from harness.regress.series import BlockSeries, Days


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("baseline", metavar="STUDY_A", help=f"the baseline: {STUDY_HELP}")
    parser.add_argument("candidate", metavar="STUDY_B", help="the candidate, given in the same way")
    add_arm(parser)
    add_comparing(parser)
    parser.add_argument(
        "--baselines", default=BASELINES, metavar="DIR",
        help="kept baselines, used to estimate day-to-day variation (default: %(default)s)",
    )  # fmt: skip


def compare(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Compare each arm that both studies have. Return the exit code of the worst verdict: slower, then undecided. An
    arm is undecided if its environments differ in a way that forbids the comparison (--allow accepts it). Raises
    InputError without a common arm.
    """
    from harness.regress.across import compare_series

    limits, undecided = limits_of(arguments), read_exit_code(arguments.undecided_exit)
    baseline, candidate = (read_series(Path(path)) for path in (arguments.baseline, arguments.candidate))
    names = [name for name in select(candidate, arguments.arm, arguments.candidate) if name in baseline]
    if not names:
        raise InputError(
            f"compare: no common arm; {arguments.baseline}: {', '.join(baseline)}; "
            f"{arguments.candidate}: {', '.join(candidate)}"
        )
    folder = Path(arguments.baselines)
    comparisons = [
        compare_series(baseline[name], candidate[name], limits, arguments.allow, _days(folder, candidate[name]))
        for name in names
    ]
    return show(comparisons, arguments.json, undecided)


def _days(folder: Path, series: BlockSeries) -> Days:
    """Return the sessions (studies of other days) in the kept baseline of this arm and environment; empty without one.

    The sessions show how much results differ between days.
    """
    from harness.regress import baselines
    from harness.regress.series import Days

    path = baselines.path_of(folder, series)
    return Days(baselines.read(path).sessions if path.is_file() else ())


def read_series(path: Path) -> dict[str, BlockSeries]:
    """Return the measured blocks by arm of the study at ``path``, or of the newest study below it. Raises InputError if
    no finished run has a measured step.
    """
    from harness.regress.series import series_of
    from harness.study.store import StudyFolder

    path = study_path(path)
    folder = StudyFolder(path)
    series = series_of(folder.read_study(), list(folder.runs()))
    if not series:
        raise InputError(f"{path}: no finished run with a measured step to compare")
    return series


def select(found: Mapping[str, BlockSeries], patterns: Sequence[str], where: str) -> list[str]:
    """Return the arms that match ``patterns`` (globs; none: all) in the study ``where``; InputError without a match."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in found):
            raise InputError(f"--arm {pattern}: no arm of {where} matches; arms: {', '.join(found)}")
    return [name for name in found if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]


def show(found: Sequence[Across], as_json: bool, undecided: int) -> int:
    """Print the comparisons as Markdown or JSON; return the exit code of the worst verdict (slower, then undecided).

    ``undecided``: exit code if that verdict is undecided.
    """
    from harness.regress import report as regression
    from harness.regress.across import common_move
    from harness.regress.text import AT_OTHER_TIMES, common_move_note

    comparisons = [across.comparison for across in found]
    move = common_move(comparisons)
    notes = [] if all(comparison.same_study for comparison in comparisons) else [AT_OTHER_TIMES]
    notes += [] if move is None else [common_move_note(move)]
    if as_json:
        print(json.dumps(regression.as_json(comparisons, notes), indent=1, default=str))
    else:
        say(regression.markdown(comparisons, notes, alternated=False).removesuffix("\n"))
        for line in dict.fromkeys(allow_lines(found)):
            say(line)
    return of_verdict(regression.overall(comparisons), undecided)


def allow_lines(found: Iterable[Across]) -> Iterable[str]:
    """Yield a line for each refused comparison, with the --allow options that would permit it."""
    for across in found:
        if across.refused:
            keys = " ".join(f"--allow {_quoted(difference.key)}" for difference in across.refused)
            yield f"\nTo compare them anyway: {keys}"


def _quoted(key: str) -> str:
    """Quote ``key`` for a shell. It comes from a study's file and may contain any character."""
    return "'" + key.replace("'", "'\"'\"'") + "'"
