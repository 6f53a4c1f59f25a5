"""harness regress: decides if one state of the code is slower than another, on this machine, now."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.attach import MOST_STEPS, STEPS
from harness.commands.arguments import DEFAULT_OUT, add_limits, add_overrides, add_undecided, limits_of, refuse_ranks
from harness.commands.exit_codes import EXIT_INTERRUPTED, of_verdict, read_exit_code
from harness.commands.output import append_step_summary, copy_may_fail, say
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.regress.decision import Limits
    from harness.regress.run import RegressionResult
    from harness.scenario.commands import CommandPlan

GUARD = "scenarios/guard.yaml"  # covers the recorder and the loader's hot path
NOTE = (
    "Exits with 3 if something got slower (or takes more memory, or longer to start), with 4 if that could not "
    "be decided (a short budget, sides that cannot be compared), with 1 if a run failed, else with 0. The results "
    "are written first."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = NOTE
    parser.usage = "harness regress --base REV|PATH [OPTION ...] [SCENARIO | -- COMMAND [ARGUMENT ...]]"
    parser.add_argument(
        "scenario", nargs="*", metavar="SCENARIO | -- COMMAND",
        help=f"scenario file or training command to measure (in the harness's own repository: {GUARD})",
    )  # fmt: skip
    parser.add_argument("--base", metavar="REV|PATH", help="state to compare with (required)")
    parser.add_argument("--head", default=".", metavar="REV|PATH", help="state to check (default: this folder)")
    add_overrides(parser)
    parser.add_argument("--control", metavar="NAME", help="run each arm under this control: data-only or ideal-data")
    parser.add_argument(
        "--steps", type=int, metavar="N", help=f"end a block of a command after N measured steps (default: {STEPS})"
    )
    parser.add_argument("--interleave", choices=("auto", "slices", "runs"), help="see harness run")
    parser.add_argument(
        "--budget",
        default="10m",
        metavar="TIME",
        help="add blocks until this time is spent; an unfinished block is dropped (default: %(default)s)",
    )
    add_limits(parser, within="1%")
    add_undecided(parser)
    parser.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help="folder for the study (default: %(default)s)")
    parser.add_argument("--markdown", metavar="FILE", help="also write the page for a comment to this file")
    parser.add_argument("--junit", metavar="FILE", help="also write JUnit XML to this file")


def regress(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run --base and --head in turn until every arm has a verdict or the budget is spent; return the exit code."""
    from harness.regress import report as regression
    from harness.regress.decision import read_seconds
    from harness.regress.run import between_states, run_comparisons, with_codes
    from harness.regress.states import is_of_user_code, run_user_states
    from harness.regress.text import blocks_note, sentence
    from harness.scenario.commands import CommandScenario, open_scenario, plan_commands
    from harness.study.store import StudyFolder

    refuse_ranks("regress")
    limits = limits_of(arguments)
    budget_s = read_seconds(arguments.budget, "--budget")
    undecided = read_exit_code(arguments.undecided_exit)
    for option in ("markdown", "junit"):
        path = getattr(arguments, option)
        if path and not Path(path).absolute().parent.is_dir():
            raise InputError(f"--{option} {path}: its folder does not exist")
        if path and Path(path).is_dir():
            raise InputError(f"--{option} {path}: a folder; give a file")
    source, program = _measured(arguments, command)
    scenario = open_scenario(source, arguments.set, interleave=arguments.interleave) if source else None
    if scenario is None or isinstance(scenario, CommandScenario):
        plan = plan_commands(scenario) if scenario else _plan_of(program, arguments)
        outcome = _of_commands(plan, source, arguments, command, limits, budget_s)
    else:
        comparison_plan = between_states(scenario, source, arguments.arm, arguments.control)
        out = Path(arguments.out)
        if is_of_user_code(comparison_plan, arguments.base, arguments.head):
            outcome = run_user_states(
                comparison_plan, arguments.base, arguments.head, out, command, source, limits, budget_s
            )
        else:
            comparison_plan, arms = with_codes(comparison_plan, arguments.base, arguments.head, Path.cwd(), budget_s)
            outcome = run_comparisons(comparison_plan, out, command, source, limits, budget_s, arms)
    comparisons = outcome.comparisons
    notes = [note for note in (blocks_note(outcome, budget_s),) if note]
    page = regression.write(StudyFolder(outcome.folder), comparisons, notes)
    for comparison in comparisons:
        say(sentence(comparison))
    for note in notes:
        say(f"note: {note}")
    say(f"evidence: {outcome.folder / regression.MARKDOWN}")
    for path, name in ((arguments.markdown, regression.MARKDOWN), (arguments.junit, regression.JUNIT)):
        if path:
            with copy_may_fail(path):
                Path(path).write_bytes((outcome.folder / name).read_bytes())
    append_step_summary(page)
    if outcome.status == "interrupted":
        return EXIT_INTERRUPTED
    verdict = regression.overall(comparisons)
    if outcome.status == "failed":
        print(f"harness: some runs failed, see {outcome.folder}", file=sys.stderr)
        if verdict != "slower":
            return 1
    return of_verdict(verdict, undecided)


def _measured(arguments: argparse.Namespace, command: list[str]) -> tuple[str, list[str]]:
    """Return (scenario file, command) to measure; the other one is empty. Raises InputError for none or both."""
    from harness.launch.code import holds_code

    program = command[command.index("--") + 1 :] if "--" in command else []
    scenarios = arguments.scenario[: len(arguments.scenario) - len(program)]
    if program and scenarios:
        raise InputError(f"regress: {scenarios[0]}: give a SCENARIO or a command after --, not both")
    if not program and not scenarios and holds_code(".", Path.cwd()):
        scenarios = [GUARD]
    if not program and len(scenarios) != 1:
        raise InputError(
            "regress: give a command: harness regress --base main -- python train.py; or one "
            "SCENARIO: harness init speed.yaml --command 'python train.py', then harness regress speed.yaml --base main"
        )
    if arguments.base is None:
        raise InputError("the following arguments are required: --base REV|PATH (state to compare with, such as main)")
    if scenarios and arguments.steps is not None:
        raise InputError("regress: --steps goes with a command; a SCENARIO takes --set steps=N")
    return "".join(scenarios), program


def _plan_of(program: list[str], arguments: argparse.Namespace) -> CommandPlan:
    """Return the plan that runs ``program`` as ``harness exec`` would. Raises InputError for options of a scenario."""
    from harness.attach.comparison import plan_against

    if arguments.set:
        raise InputError("regress: --set goes with a SCENARIO; a command takes --steps and --interleave")
    steps = STEPS if arguments.steps is None else arguments.steps
    if not 1 <= steps <= MOST_STEPS:
        raise InputError(f"regress: --steps {steps}: allowed: 1 to {MOST_STEPS:,}")
    interleave = "runs" if arguments.interleave == "runs" else "slices"
    plan = plan_against(program, None, [], steps=steps, interleave=interleave)
    question = f"Is {shlex.join(program)} slower at {arguments.head} than at {arguments.base}?"
    return replace(plan, scenario=plan.scenario.model_copy(update={"name": "regress", "question": question}))


def _of_commands(
    plan: CommandPlan, source: str, arguments: argparse.Namespace, command: list[str], limits: Limits, budget_s: float
) -> RegressionResult:
    """Compare --base with --head (two states of the user's repository) by running the commands of ``plan`` in each.

    Raises InputError for --arm and --control.
    """
    from harness.regress.states import run_command_states

    for option in ("arm", "control"):
        if getattr(arguments, option):
            raise InputError(f"regress: --{option} does not go with commands")
    return run_command_states(
        plan, arguments.base, arguments.head, Path(arguments.out), command, source, limits, budget_s
    )
