"""harness exec: runs any unchanged training command, and reports where the time of its steps went."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.attach import LEAST_WARMUP, MOST_STEPS, STEPS
from harness.attach.agent.events import MOST_PROFILE_STEPS
from harness.commands.arguments import DEFAULT_OUT, add_export, add_wait_until_quiet, checked_export
from harness.commands.exit_codes import EXIT_INTERRUPTED
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.attach.command import AgentSettings, Ended
    from harness.attach.study import ExecResult
    from harness.launch.quiet import LoadCheck
    from harness.scenario.commands import CommandPlan
    from harness.study.store import StudyFolder

BLOCKS, MOST_BLOCKS = 5, 1000
AUTO, TORCH, PY_SPY, BOTH, NONE = "auto", "torch", "py-spy", "both", "none"  # --profile
PROCESSES_NAMED = 5  # processes that a line names
EXPORT_EVERY_S = 30  # between two looks
EXPORT_END_S = 15.0  # for the last look and its transfer, after the command has ended
PROFILE_STEPS = 3
PROFILE_SECONDS, MOST_PROFILE_SECONDS = 5, 60
FUNCTION = re.compile(r"([\w.]+:)?\w+(\.\w+)?")
NOTE = """No line of the program changes: torch's DataLoader, backward pass and optimizers are timed from outside, and
its losses stay what they are. The exit code is the program's own; 1 if it succeeded but nothing could be attached.
Not seen: a Python that ignores PYTHONPATH (env -i, python -I or -E); loaders that are not torch's, except a function
that returns the batch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = NOTE
    parser.usage = (
        "harness exec [--steps N] [--warmup N] [--against 'COMMAND'] [--controls LIST] [--repeats N] "
        "[--profile [KIND]] [--out DIR] -- COMMAND [ARGUMENT ...]"
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="command to run: python train.py, torchrun ..."
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=f"end the program after N measured steps (with --against or --controls: of each block; default {STEPS})",
    )
    parser.add_argument(
        "--warmup", type=int, default=5, metavar="N", help="steps that are not measured (default: %(default)s)"
    )
    parser.add_argument(
        "--against",
        metavar="'COMMAND'",
        help="compare COMMAND after -- with this one; both run unchanged and alternate, in fresh processes each block",
    )
    parser.add_argument(
        "--controls",
        metavar="LIST",
        help="run the command again as its own controls: ideal-data (no step waits for data), data-only (batches), "
        "a-a (unchanged, to measure the noise floor), dose (each batch made 1, 2 and 4 times more), or all",
    )
    parser.add_argument(
        "--repeats", type=int, metavar="N", help=f"blocks, with --against or --controls (default: {BLOCKS})"
    )
    parser.add_argument(
        "--interleave",
        choices=("slices", "runs"),
        help="with --against or --controls: alternate slices of running commands, or run them one by one (default: "
        "slices)",
    )
    add_wait_until_quiet(parser, "with --against or --controls: ")
    parser.add_argument(
        "--fetch",
        metavar="[MODULE:]NAME",
        help="the function that returns a batch, if no torch loader does and it is not detected",
    )
    parser.add_argument(
        "--step-ends", metavar="OPTIMIZER", help="class of the optimizer whose update ends a step, if there are several"
    )
    parser.add_argument(
        "--profile",
        nargs="?",
        const=TORCH,
        choices=(AUTO, TORCH, PY_SPY, BOTH, NONE),
        help="record some steps after the warm-up, which are not measured: operators by torch.profiler (torch, or "
        "--profile alone), stacks of all processes by py-spy, or both. Without it: auto, torch.profiler after the "
        "measured steps of --steps, if CUDA events leave over 5 %% of the device time unknown; none: never",
    )
    parser.add_argument(
        "--profile-steps", type=int, metavar="N", help=f"steps that torch.profiler records (default: {PROFILE_STEPS})"
    )
    parser.add_argument(
        "--profile-seconds", type=int, metavar="S", help=f"seconds of sampling by py-spy (default: {PROFILE_SECONDS})"
    )
    add_export(parser)
    parser.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help="folder for studies (default: %(default)s)")
    parser.add_argument(
        "--recorded",
        metavar="DIR",
        help="run nothing: make a study from this recording (STUDY/raw of an exec that was killed)",
    )


def execute(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run a command with the agent (our recorder) inside it, make a study, and print its first screen (short report).

    Return the command's exit code; 1 if it succeeded but no training step was recorded.
    """
    program = _program(arguments.program, command)
    if arguments.recorded is not None and program:
        raise InputError("exec: --recorded runs nothing: omit the command")
    if arguments.recorded is None and not program:
        raise InputError("exec: give a command: harness exec -- python train.py")
    if arguments.fetch is not None and not FUNCTION.fullmatch(arguments.fetch):
        raise InputError(f"exec: --fetch {arguments.fetch!r}: allowed: get_batch, or module:get_batch")
    for option, least in (("steps", 1), ("warmup", LEAST_WARMUP)):
        value = getattr(arguments, option)
        if value is not None and not least <= value <= MOST_STEPS:
            raise InputError(f"exec: --{option} {value}: allowed: {least} to {MOST_STEPS:,}")
    _check_profile(arguments)
    exports = checked_export(arguments, "exec")
    if exports and (arguments.recorded is not None or arguments.against is not None or arguments.controls is not None):
        raise InputError(f"exec: {exports[0]} is of one running command: omit --recorded, --against and --controls")
    if arguments.against is not None or arguments.controls is not None:
        return _compare(arguments, program, command)
    for option in ("repeats", "interleave", "wait_until_quiet"):
        if getattr(arguments, option) is not None:
            raise InputError(f"exec: --{option.replace('_', '-')} needs --against or --controls")
    from harness.attach.command import run_command
    from harness.attach.study import SCENARIO
    from harness.launch.preparation import check_writable
    from harness.launch.study import create_folder
    from harness.study.contract import RAW
    from harness.study.records import now
    from trainer.files import remove

    check_writable(Path(arguments.out))
    if arguments.recorded is not None and not Path(arguments.recorded).is_dir():
        raise InputError(f"exec: --recorded {arguments.recorded}: no such folder")
    folder = create_folder(Path(arguments.out), SCENARIO)
    begun_utc = now()
    if arguments.recorded is not None:
        return _report(folder, Path(arguments.recorded), command, command, None, begun_utc)
    raw = (folder.path / RAW).absolute()
    raw.mkdir()
    try:
        with _exported(folder.path, exports):
            outcome = run_command(program, raw, _settings(arguments, arguments.steps))
    except (InputError, OSError):  # The command was not started.
        remove(folder.path)
        raise
    try:
        status = _report(folder, raw, program, command, outcome, begun_utc)
    except OSError:  # a full disk
        print(f"harness: the recording is kept; make a study: harness exec --recorded {raw}", file=sys.stderr)
        raise
    remove(raw)
    return status


@contextmanager
def _exported(study: Path, exports: list[str]) -> Iterator[None]:
    """Run ``harness watch`` with ``exports`` beside the command; nothing without."""
    if not exports:
        yield
        return
    # -P: no module of the current folder stands in for one of ours. Ctrl-C is for the command alone.
    watch = [sys.executable, "-P", "-m", "harness", "watch", str(study), "--every", str(EXPORT_EVERY_S), *exports]
    watching = subprocess.Popen(watch, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        watching.terminate()  # It makes its last look first.
        try:
            watching.wait(EXPORT_END_S)
        except subprocess.TimeoutExpired:
            watching.kill()
            watching.wait()


def _program(given: list[str], command: list[str]) -> list[str]:
    """Return the program to run: all words of ``command`` after ``--``, empty without ``--``. ``given``: words that
    argparse took for the program. Raises InputError if no ``--`` stands before them.
    """
    program = command[command.index("--") + 1 :] if "--" in command else []
    if len(given) > len(program) + 1 or (given and "--" not in command):  # argparse may leave the -- in ``given``.
        options = command[2 : len(command) - len(given)]
        raise InputError(f"exec: put -- before the command: {shlex.join(['harness', 'exec', *options, '--', *given])}")
    return program


def _check_profile(arguments: argparse.Namespace) -> None:
    """Raise InputError if the options of --profile contradict each other or other options."""
    for option, kinds, most in (
        ("profile_steps", (TORCH, BOTH), MOST_PROFILE_STEPS),
        ("profile_seconds", (PY_SPY, BOTH), MOST_PROFILE_SECONDS),
    ):
        value, name = getattr(arguments, option), f"--{option.replace('_', '-')}"
        if value is not None and arguments.profile not in kinds:
            raise InputError(f"exec: {name} goes with --profile {' or '.join(kinds)}")
        if value is not None and not 1 <= value <= most:
            raise InputError(f"exec: {name} {value}: allowed: 1 to {most}")
    if arguments.profile in (None, AUTO, NONE):
        return
    if arguments.against is not None or arguments.controls is not None:
        raise InputError("exec: --profile cannot be combined with --against or --controls: profile each command alone")
    if arguments.recorded is not None:
        raise InputError("exec: --recorded runs nothing: omit --profile")


def _compare(arguments: argparse.Namespace, program: list[str], command: list[str]) -> int:
    """Run the program, --against and --controls as the arms of a study. Return 1 if a run failed, else 0."""
    from harness.attach.comparison import CONTROLS, plan_against
    from harness.attach.study import SCENARIO
    from harness.launch.quiet import load_check

    if arguments.recorded is not None:
        raise InputError("exec: --recorded runs nothing: omit --against and --controls")
    check = load_check(arguments.wait_until_quiet, "exec")
    blocks = BLOCKS if arguments.repeats is None else arguments.repeats
    if not 1 <= blocks <= MOST_BLOCKS:
        raise InputError(f"exec: --repeats {blocks}: allowed: 1 to {MOST_BLOCKS:,}")
    against = None if arguments.against is None else _split(arguments.against)
    controls = [] if arguments.controls is None else arguments.controls.split(",")
    if controls == ["all"]:
        controls = list(CONTROLS)
    for kind in controls:
        if kind not in CONTROLS:
            raise InputError(f"exec: --controls {kind!r}: allowed: {', '.join(CONTROLS)}, or all")
    plan = plan_against(
        program,
        against,
        controls,
        repeats=blocks,
        steps=arguments.steps or STEPS,
        interleave=arguments.interleave or "slices",
        warmup=arguments.warmup,
        fetch=arguments.fetch,
        step_ends=arguments.step_ends,
    )
    return run_commands(plan, Path(arguments.out), SCENARIO, command, check)


def run_commands(
    plan: CommandPlan, out: Path, name: str, command: list[str], load_check: LoadCheck, source: str = ""
) -> int:
    """Run ``plan`` into a new study below ``out``/``name`` and print a short report; return the study's exit code.

    ``load_check``: check of other processes' load before the runs. ``source``: path of the scenario file, or "".
    """
    from harness.attach.comparison import run_comparison
    from harness.commands import exit_codes
    from harness.commands.report import print_first_screen
    from harness.launch.preparation import check_writable
    from harness.launch.study import create_folder
    from trainer.files import remove

    check_writable(out)
    folder = create_folder(out, name)
    try:
        status = run_comparison(folder, plan, command, source, load_check=load_check).status
    except InputError:
        remove(folder.path)
        raise
    print_first_screen(folder.path, measured=True)
    say(f"study: {folder.path}")
    return exit_codes.OF_STUDY[status]


def _settings(arguments: argparse.Namespace, steps: int | None = None) -> AgentSettings:
    from harness.attach.command import SEGMENT_S, AgentSettings

    kind = arguments.profile
    return AgentSettings(
        arguments.warmup,
        steps,
        fetch=arguments.fetch,
        step_ends=arguments.step_ends,
        profile_steps=(arguments.profile_steps or PROFILE_STEPS) if kind in (TORCH, BOTH) else None,
        closing_steps=PROFILE_STEPS if kind in (None, AUTO) and steps is not None else None,
        profile_seconds=(arguments.profile_seconds or PROFILE_SECONDS) if kind in (PY_SPY, BOTH) else None,
        segment_s=SEGMENT_S,
    )


def _split(text: str) -> list[str]:
    """Split a command line into words as a shell would. Raises InputError if it is malformed or empty."""
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise InputError(f"exec: --against {text!r}: {str(error).lower()}") from error
    if not parts:
        raise InputError("exec: --against '': give a command")
    return parts


def _report(
    folder: StudyFolder, raw: Path, program: list[str], command: list[str], ended: Ended | None, begun_utc: str
) -> int:
    """Make a study of the recording in ``raw``, print its first screen, and return the exit code (1: no study)."""
    from harness.attach.study import make_study
    from harness.commands.report import print_first_screen
    from trainer.files import remove

    code = 0 if ended is None else ended.code
    study = make_study(folder, raw, program, command, begun_utc, ended)
    for fault in study.faults:
        print(f"harness: {fault}", file=sys.stderr)
    if not study.trained:
        print(f"harness: {_why(study, raw, code)}", file=sys.stderr)
        remove(folder.path)
        return code or 1
    print_first_screen(folder.path, measured=True)
    if study.profiled:
        arms = ", ".join(study.profiled)
        say(f"profiled, not measured: {arms}; on one timeline with its steps: harness trace {folder.path}")
    say(f"study: {folder.path}")
    return code


def _why(found: ExecResult, raw: Path, code: int) -> str:
    """Return why no training step was recorded. ``raw``: folder of the recording. ``code``: command's exit code."""
    from harness.attach.command import MARK
    from harness.machine.processes import with_variable

    if not raw.is_dir():
        return f"nothing was recorded: the folder of the recording was removed while the command ran ({raw})"
    if found.switched_off:
        return "no training step was recorded: the recording stopped before the first one"
    if pids := with_variable(MARK, str(raw)):
        numbers = ", ".join(map(str, pids[:PROCESSES_NAMED]))
        return (
            f"nothing was recorded: the command ended and left processes behind ({numbers}), which are not "
            "measured; start the training in the foreground (no nohup, &, or daemon)"
        )
    if code:
        ending = "was interrupted" if code == EXIT_INTERRUPTED else f"ended with exit code {code}"
        return f"no training step was recorded: the command {ending}"
    if found.started:
        return "no training step was recorded: torch was imported, but no backward pass ran in a process of the command"
    return (
        "nothing was attached: no Python process of the command imported torch, or its environment lost PYTHONPATH "
        "(env -i, python -I)"
    )
