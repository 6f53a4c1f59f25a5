"""harness run: runs a scenario as a study and prints its verdicts."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands import exit_codes
from harness.commands.arguments import (
    DEFAULT_OUT,
    PATHS_NOTE,
    SCENARIO_HELP,
    add_overrides,
    add_wait_until_quiet,
    name_file,
    refuse_ranks,
)
from harness.commands.output import say
from harness.commands.report import print_first_screen
from trainer.errors import InputError
from trainer.files import shell_word

if TYPE_CHECKING:
    from harness.launch.study import Outcome
    from harness.scenario.commands import CommandScenario
    from harness.scenario.plan import Plan

_QUIET_ELSEWHERE = "run --wait-until-quiet: cannot be combined with launch.slurm, whose jobs run on other machines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = PATHS_NOTE
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO", help=SCENARIO_HELP)
    parser.add_argument("--plan", action="store_true", help="print every run in order, and run nothing")
    parser.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help="folder for studies (default: %(default)s)")
    parser.add_argument("--resume", metavar="STUDY", help="complete the study in this folder")
    add_overrides(parser)
    parser.add_argument("--repeats", type=int, metavar="N", help="number of blocks; each runs every arm once")
    parser.add_argument(
        "--interleave", choices=("auto", "slices", "runs"), help="alternate repetitions, or run one after the other"
    )
    parser.add_argument(
        "--json", action="store_true", help="print summary.json instead of the first screen; with --plan: the plan"
    )
    parser.add_argument("--here", action="store_true", help="run on this machine instead of jobs of launch.slurm")
    parser.add_argument("--dry-run", action="store_true", help="print the batch script of launch.slurm; submit nothing")
    parser.add_argument(
        "--no-wait", action="store_true", help="submit the jobs of launch.slurm and exit; gather with --resume STUDY"
    )
    parser.add_argument(
        "--budget", metavar="LIMIT",
        help="limit: 6h, 90m, 20usd, or none; replaces the budget of the scenario or (--resume) study",
    )  # fmt: skip
    add_wait_until_quiet(parser)
    parser.add_argument("--force", action="store_true", help="start even if it cannot fit into the free memory")


def run(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run a scenario, or (--resume) the rest of a study, and print its verdicts. Return the exit code of the study."""
    refuse_ranks("run")
    if arguments.resume is not None:
        _check_resume(arguments)
        return _finish(_resume(arguments, command), arguments.json)
    if arguments.scenario is None:
        raise InputError("run: give a scenario file (scenarios/*.yaml), or --resume STUDY")
    from harness.scenario.commands import CommandScenario, open_scenario
    from harness.scenario.plan import make_plan

    name_file(arguments.scenario)
    scenario = open_scenario(
        arguments.scenario, arguments.set, repeats=arguments.repeats, interleave=arguments.interleave
    )
    if isinstance(scenario, CommandScenario):
        return _run_commands(scenario, arguments, command)
    plan = make_plan(scenario, arguments.scenario, arguments.arm)
    if arguments.wait_until_quiet is not None:
        from harness.launch.quiet import load_check

        load_check(arguments.wait_until_quiet, "run")  # Refuse a wrong value even if nothing runs.
    if arguments.budget is not None:
        from harness.commands.budgets import read_limit

        read_limit(arguments.budget)  # Refuse a wrong value even if nothing runs.
    if arguments.plan:
        _say_plan(plan, arguments)
        return 0
    return _finish(outcome, arguments.json) if (outcome := _start(plan, arguments, command)) is not None else 0


def _say_plan(plan: Plan, arguments: argparse.Namespace) -> None:
    """Print every planned run and the expected duration, as text or (--json) as JSON. Runs nothing."""
    from harness.commands.durations import expected, plan_line
    from harness.scenario.plan import describe, plan_json

    out = Path(arguments.out)
    if not arguments.json:
        say(describe(plan))
        say(plan_line(plan, arguments.scenario, out))
        return
    estimate = expected(plan, out)
    duration = None if estimate is None else {"seconds": estimate.seconds, "basis": estimate.basis}
    say(json.dumps({**plan_json(plan), "expected": duration}, indent=1))


def _start(plan: Plan, arguments: argparse.Namespace, command: list[str]) -> Outcome | None:
    """Run the study here, or in Slurm jobs if its scenario says so. None for --dry-run, which prints a script only."""
    from harness.launch.quiet import load_check
    from harness.launch.slurm.study import print_script, slurm_of, submit_study
    from harness.launch.study import StudyOptions, run_study
    from harness.launch.tracking.trackers import warn_of_missing

    check = load_check(arguments.wait_until_quiet, "run")
    out = Path(arguments.out)
    if arguments.dry_run:
        say(print_script(plan, out, arguments.force).rstrip("\n"))
        return None
    in_jobs = slurm_of({arm.name: arm.config for arm in plan.arms}) is not None and not arguments.here
    if arguments.no_wait and not in_jobs:
        raise InputError("run --no-wait: needs launch.slurm, whose jobs run without this process")
    if in_jobs and arguments.wait_until_quiet is not None:
        raise InputError(_QUIET_ELSEWHERE)
    from harness.commands.budgets import limit_asked, study_allowance

    limit = limit_asked(arguments.budget, plan.scenario)
    if limit is not None and in_jobs:
        raise InputError(
            "run: budget: only for a study on this machine; jobs of launch.slurm end after launch.slurm.time"
        )
    warn_of_missing(plan.scenario.track)
    if in_jobs:
        return submit_study(plan, out, command, arguments.scenario, force=arguments.force, wait=not arguments.no_wait)
    allowance = (
        None if limit is None else study_allowance(plan, limit, out, command, arguments.scenario, arguments.force)
    )
    options = StudyOptions(arguments.force, allowance, load_check=check)
    return run_study(plan, out, command, arguments.scenario, options=options)


def _resume(arguments: argparse.Namespace, command: list[str]) -> Outcome:
    """Run the missing runs of a study: in Slurm jobs if it was started in jobs (unless --here), else here."""
    from harness.launch.quiet import load_check
    from harness.launch.slurm.study import begun_in_jobs, refuse_jobs_in_queue, resume_in_jobs
    from harness.launch.study import StudyOptions, resume_study

    check = load_check(arguments.wait_until_quiet, "run")
    path = Path(arguments.resume)
    if begun_in_jobs(path):
        if not arguments.here:
            if arguments.budget is not None:
                raise InputError("run --budget: jobs of launch.slurm end after launch.slurm.time")
            if arguments.wait_until_quiet is not None:
                raise InputError(_QUIET_ELSEWHERE)
            return resume_in_jobs(path, command, force=arguments.force, wait=not arguments.no_wait)
        refuse_jobs_in_queue(path)
    elif arguments.no_wait:
        raise InputError("run --no-wait: needs a study of launch.slurm, whose jobs run without this process")
    from harness.commands.budgets import resumed_allowance

    allowance = resumed_allowance(path, arguments.budget)
    return resume_study(path, command, StudyOptions(arguments.force, allowance, load_check=check))


def _run_commands(scenario: CommandScenario, arguments: argparse.Namespace, command: list[str]) -> int:
    """Run a scenario of commands, or (--plan) print its runs; return the exit code. Raises InputError for options that
    such a scenario does not support.
    """
    from harness.launch.quiet import load_check
    from harness.scenario.commands import describe_commands, plan_commands

    for option in ("arm", "json", "force", "here", "dry_run", "no_wait", "budget"):
        if getattr(arguments, option):
            raise InputError(f"run: --{option.replace('_', '-')} cannot be combined with a scenario of commands")
    check = load_check(arguments.wait_until_quiet, "run")
    plan = plan_commands(scenario)
    if arguments.plan:
        from harness.commands.durations import plan_line

        say(describe_commands(plan))
        say(plan_line(plan, arguments.scenario, Path(arguments.out)))
        return 0
    from harness.commands.exec import run_commands

    return run_commands(plan, Path(arguments.out), plan.scenario.name, command, check, arguments.scenario)


def _check_resume(arguments: argparse.Namespace) -> None:
    options = {
        "SCENARIO": arguments.scenario,
        "--plan": arguments.plan,
        "--set": arguments.set,
        "--arm": arguments.arm,
        "--repeats": arguments.repeats,
        "--interleave": arguments.interleave,
        "--out": arguments.out != DEFAULT_OUT,
        "--dry-run": arguments.dry_run,
    }
    for name, value in options.items():
        if value:
            raise InputError(f"run --resume: {name} cannot be combined with it: a resumed study keeps its plan")


def _finish(outcome: Outcome, as_json: bool) -> int:
    folder, status = outcome.folder, outcome.status
    if outcome.in_queue:  # There is nothing to report yet.
        if as_json:
            say(json.dumps({"schema": 1, "status": status, "study": str(folder)}))
        else:
            say(f"study: {folder}")
        return 0 if status == "submitted" else exit_codes.OF_STUDY[status]
    from harness.commands.budgets import say_cost, stopped_line
    from harness.launch.tracking.tracked_study import tracked
    from harness.show.build import build_report

    try:
        with tracked(folder, partial(build_report, folder)):
            print_first_screen(folder, as_json=as_json, measured=True)
            if not as_json:
                say_cost(folder)
    except InputError as error:  # An interrupted study without measurements has nothing to report.
        if status != "interrupted":
            raise
        print(f"harness: {error}", file=sys.stderr)
    except (OSError, KeyboardInterrupt):
        print(f"the runs are kept; rebuild the report with: harness report {shell_word(folder)}", file=sys.stderr)
        raise
    if status == "interrupted" and outcome.cut is not None:
        print(stopped_line(folder, outcome.cut), file=sys.stderr)
        return exit_codes.OF_STUDY["failed"]
    if status == "interrupted":
        print(f"interrupted; complete it with: harness run --resume {shell_word(folder)}", file=sys.stderr)
    elif status != "done":
        print(
            f"harness: some runs failed, see {folder}; repeat them with: harness run --resume {shell_word(folder)}",
            file=sys.stderr,
        )
    return exit_codes.OF_STUDY[status]
