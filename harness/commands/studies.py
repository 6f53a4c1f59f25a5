"""harness run, harness report: studies and their verdicts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.scenario.plan import Plan

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_CODES = {"done": 0, "failed": 1, "interrupted": INTERRUPTED}


def load_plan(arguments: argparse.Namespace) -> Plan:
    """The plan of the scenario that ``arguments`` name, with their overrides."""
    from harness.scenario.load import load_scenario
    from harness.scenario.plan import make_plan

    scenario = load_scenario(
        arguments.scenario, arguments.set, repeats=arguments.repeats, interleave=arguments.interleave
    )
    return make_plan(scenario, arguments.scenario, arguments.arm)


def run(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run a scenario, or what a study lacks; print the verdicts and where the summary lies."""
    if arguments.resume is not None:
        _check_resume(arguments)
        from harness.launch.study import resume_study

        return _finish(*resume_study(Path(arguments.resume), command))
    if arguments.scenario is None:
        raise InputError("run: which scenario? give a file (scenarios/*.yaml), or --resume STUDY")
    plan = load_plan(arguments)
    if arguments.plan:
        from harness.scenario.plan import describe

        print(describe(plan))
        return 0
    from harness.launch.study import run_study

    return _finish(*run_study(plan, Path(arguments.out), command, arguments.scenario))


def report(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Rebuild the report of a study from its tables; print the verdicts."""
    _print_verdicts(Path(arguments.study))
    return 0


def _check_resume(arguments: argparse.Namespace) -> None:
    given = {
        "SCENARIO": arguments.scenario,
        "--plan": arguments.plan,
        "--set": arguments.set,
        "--arm": arguments.arm,
        "--repeats": arguments.repeats,
        "--interleave": arguments.interleave,
        "--out": arguments.out != arguments.default_out,
    }
    for name, value in given.items():
        if value:
            raise InputError(f"run --resume: {name} does not go with it: a study is completed as it was planned")


def _finish(folder: Path, status: str) -> int:
    try:
        _print_verdicts(folder)
    except (OSError, KeyboardInterrupt):
        print(f"the runs are kept; rebuild the report with: harness report {folder}", file=sys.stderr)
        raise
    if status == "interrupted":
        print(f"interrupted; complete it with: harness run --resume {folder}", file=sys.stderr)
    elif status != "done":
        print(
            f"harness: some runs failed, see {folder}; repeat them with: harness run --resume {folder}", file=sys.stderr
        )
    return EXIT_CODES[status]


def _print_verdicts(folder: Path) -> None:
    from harness.report.build import build_report
    from harness.study.store import StudyFolder

    for sentence in build_report(folder):
        print(sentence)
    print(f"summary: {StudyFolder(folder).summary_md}")
