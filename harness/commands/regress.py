"""harness regress: is this state of the code slower than that one, on this machine, now?"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.studies import INTERRUPTED
from harness.regression.quantities import read_limit, read_seconds, read_share
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.regression.gate import Limits

REGRESSION = 3


def regress(arguments: argparse.Namespace, command: list[str]) -> int:
    """Alternate both states until every arm is decided or the budget is spent; the exit code says how it went."""
    from harness.regression import report as regression
    from harness.regression.plan import between_states
    from harness.regression.run import run_comparisons, with_codes
    from harness.scenario.load import load_scenario
    from harness.study.store import StudyFolder

    limits = limits_of(arguments)
    budget_s = read_seconds(arguments.budget, "--budget")
    undecided = read_exit_code(arguments.undecided_exit)
    for option in ("markdown", "junit"):
        path = getattr(arguments, option)
        if path and not Path(path).absolute().parent.is_dir():
            raise InputError(f"--{option} {path}: its folder does not exist")
        if path and Path(path).is_dir():
            raise InputError(f"--{option} {path}: a folder; give a file")
    scenario = load_scenario(arguments.scenario, arguments.set, interleave=arguments.interleave)
    asked = between_states(scenario, arguments.scenario, arguments.arm, arguments.control)
    asked, arms = with_codes(asked, arguments.base, arguments.head, Path.cwd())
    found = run_comparisons(asked, Path(arguments.out), command, arguments.scenario, limits, budget_s, arms)
    comparisons = found.comparisons
    notes = [note for note in (regression.blocks_note(found, budget_s),) if note]
    page = regression.write(StudyFolder(found.folder), comparisons, notes)
    for comparison in comparisons:
        print(regression.sentence(comparison))
    for note in notes:
        print(f"note: {note}")
    print(f"evidence: {found.folder / regression.MARKDOWN}")
    for path, name in ((arguments.markdown, regression.MARKDOWN), (arguments.junit, regression.JUNIT)):
        if path:
            with _evidence_is_kept(path):
                Path(path).write_bytes((found.folder / name).read_bytes())
    with _evidence_is_kept("GITHUB_STEP_SUMMARY"):
        regression.append_step_summary(page, os.environ.get("GITHUB_STEP_SUMMARY"))
    if found.status == "interrupted":
        return INTERRUPTED
    verdict = regression.overall(comparisons)
    if found.status == "failed":
        print(f"harness: some runs failed, see {found.folder}", file=sys.stderr)
        if verdict != "slower":
            return 1
    return exit_code(verdict, undecided)


@contextmanager
def _evidence_is_kept(where: str) -> Iterator[None]:
    """What cannot be written there is in the study's folder all the same: say so, and let the verdict stand."""
    try:
        yield
    except OSError as error:
        print(f"harness: {where}: {error.strerror}", file=sys.stderr)


def limits_of(arguments: argparse.Namespace) -> Limits:
    """What counts as the same, from the options; InputError where one is not a share."""
    from harness.regression.gate import Limits

    return Limits(
        read_share(arguments.within, "--within"),
        read_limit(arguments.memory_within, "--memory-within"),
        read_limit(arguments.startup_within, "--startup-within"),
    )


def exit_code(verdict: str, undecided: int) -> int:
    return {"slower": REGRESSION, "undecided": undecided}.get(verdict, 0)


def read_exit_code(text: str) -> int:
    """An exit code for undecided checks; InputError for one that cannot be."""
    if not text.isdecimal() or int(text) > 125:
        raise InputError(f"--undecided-exit {text!r}: allowed: 0 to 125")
    return int(text)
