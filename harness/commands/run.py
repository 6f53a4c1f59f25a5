"""harness run: runs a scenario as a study and prints its verdicts."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands import exit_codes
from harness.commands.arguments import DEFAULT_OUT, PATHS_NOTE, add_overrides, refuse_ranks
from harness.commands.output import say
from harness.commands.report import print_first_screen
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.launch.study import Outcome
    from harness.scenario.commands import CommandScenario


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The scenario and what overrides it, or the study to complete."""
    parser.epilog = PATHS_NOTE
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help="scenario file, or the name of a shipped one (harness list)"
    )
    parser.add_argument("--plan", action="store_true", help="print every run in order, and run nothing")
    parser.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help="where studies go (default: %(default)s)")
    parser.add_argument("--resume", metavar="STUDY", help="run what the study in this folder still lacks")
    add_overrides(parser)
    parser.add_argument("--repeats", type=int, metavar="N", help="blocks, each with every arm once")
    parser.add_argument(
        "--interleave", choices=("auto", "slices", "runs"), help="interleave repetitions, or one run after the other"
    )
    parser.add_argument(
        "--json", action="store_true", help="print summary.json instead of the first screen; with --plan: the plan"
    )
    parser.add_argument("--force", action="store_true", help="start it also where it cannot fit into the free memory")


def run(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run a scenario, or what a study lacks; print the verdicts and where the summary lies."""
    refuse_ranks("run")
    if arguments.resume is not None:
        _check_resume(arguments)
        from harness.launch.study import resume_study

        return _finish(resume_study(Path(arguments.resume), command, arguments.force), arguments.json)
    if arguments.scenario is None:
        raise InputError("run: which scenario? give a file (scenarios/*.yaml), or --resume STUDY")
    from harness.scenario.commands import CommandScenario, open_scenario
    from harness.scenario.plan import make_plan

    scenario = open_scenario(
        arguments.scenario, arguments.set, repeats=arguments.repeats, interleave=arguments.interleave
    )
    if isinstance(scenario, CommandScenario):
        return _run_commands(scenario, arguments, command)
    plan = make_plan(scenario, arguments.scenario, arguments.arm)
    if arguments.plan:
        from harness.scenario.plan import describe, plan_json

        say(json.dumps(plan_json(plan), indent=1) if arguments.json else describe(plan))
        return 0
    from harness.launch.study import run_study

    outcome = run_study(plan, Path(arguments.out), command, arguments.scenario, force=arguments.force)
    return _finish(outcome, arguments.json)


def _run_commands(scenario: CommandScenario, arguments: argparse.Namespace, command: list[str]) -> int:
    """Run a scenario whose arms are commands."""
    from harness.scenario.commands import describe_commands, plan_commands

    for option in ("arm", "json", "force"):
        if getattr(arguments, option):
            raise InputError(f"run: --{option} does not go with a scenario of commands")
    plan = plan_commands(scenario)
    if arguments.plan:
        say(describe_commands(plan))
        return 0
    from harness.commands.exec import run_commands

    return run_commands(plan, Path(arguments.out), plan.scenario.name, command, arguments.scenario)


def _check_resume(arguments: argparse.Namespace) -> None:
    given = {
        "SCENARIO": arguments.scenario,
        "--plan": arguments.plan,
        "--set": arguments.set,
        "--arm": arguments.arm,
        "--repeats": arguments.repeats,
        "--interleave": arguments.interleave,
        "--out": arguments.out != DEFAULT_OUT,
    }
    for name, value in given.items():
        if value:
            raise InputError(f"run --resume: {name} does not go with it: a study is completed as it was planned")


def _finish(outcome: Outcome, as_json: bool) -> int:
    folder, status = outcome.folder, outcome.status
    from harness.launch.tracking.tracked_study import tracked
    from harness.report.build import build_report

    try:
        with tracked(folder, partial(build_report, folder)):
            print_first_screen(folder, as_json=as_json, measured=True)
    except InputError as error:  # nothing was measured before it was interrupted, so there is nothing to report
        if status != "interrupted":
            raise
        print(f"harness: {error}", file=sys.stderr)
    except (OSError, KeyboardInterrupt):
        print(f"the runs are kept; rebuild the report with: harness report {folder}", file=sys.stderr)
        raise
    if status == "interrupted":
        print(f"interrupted; complete it with: harness run --resume {folder}", file=sys.stderr)
    elif status != "done":
        print(
            f"harness: some runs failed, see {folder}; repeat them with: harness run --resume {folder}", file=sys.stderr
        )
    return exit_codes.OF_STUDY[status]
