"""harness doctor: checks if this machine is fit for studies. Each line is ok, warn or fail, with a fix."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import DEFAULT_OUT
from trainer.errors import InputError, in_words

if TYPE_CHECKING:
    from harness.machine.capacity import Needs
    from harness.machine.check import Check
    from harness.scenario.plan import Plan

COLUMNS = 120
NAME_COLUMNS = 11
INDENT = " " * (6 + NAME_COLUMNS)
STYLES = {"ok": "green", "warn": "bold yellow", "fail": "bold red"}
DOCTOR_SCHEMA = 1
NOTE = (
    "Each line is ok, warn or fail, with the fix. Exits with 1 if a check fails, so that harness run "
    "cannot work here; warnings alone exit with 0."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = NOTE
    parser.add_argument(
        "scenario",
        nargs="?",
        metavar="SCENARIO",
        help="also check devices, files, memory, /dev/shm, open files and processes for this file",
    )
    parser.add_argument("--calibrate", action="store_true", help="measure this CPU's rates (5 to 20 s) and cache them")
    parser.add_argument("--threads", type=int, metavar="N", help="torch threads on the CPU (default: torch's choice)")
    parser.add_argument("--json", action="store_true", help="print the checks, and the facts behind them, as JSON")
    parser.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help="folder for studies (default: %(default)s)")


def doctor(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the checks of this machine. Return 1 if ``harness run`` is impossible or a calibration failed, else 0."""
    if arguments.threads is not None and arguments.threads < 1:
        raise InputError(f"doctor: --threads {arguments.threads}: at least 1")
    from harness.machine.examine import Examination
    from trainer.data.cache import cache_root

    plan = None if arguments.scenario is None else _plan(arguments.scenario)
    # Calibrate first, because the examination uses cores.
    calibrated = not arguments.calibrate or _calibrate(arguments.threads)
    examination = Examination(Path(arguments.out), cache_root(), os.environ)
    if plan is None:
        checks = examination.checks(arguments.threads)
    else:
        checks = examination.checks(arguments.threads, _needs(plan), lambda: _fit(plan))
    counts = Counter(check.status for check in checks)
    if arguments.json:
        content = {
            "schema": DOCTOR_SCHEMA,
            "status": worst(checks),
            "checks": [vars(check) for check in checks],
            "facts": examination.facts(),
        }
        print(json.dumps(content, indent=2, default=str))
    else:
        _print(checks, plan is not None)
    return 1 if counts["fail"] or not calibrated else 0


def _plan(path: str) -> Plan:
    from harness.scenario.load import load_scenario
    from harness.scenario.plan import make_plan

    return make_plan(load_scenario(path, []), path, [])


def _fit(plan: Plan) -> list[Check]:
    """Return checks that memory and documents suffice for the runs of ``plan``. Raises TimeoutError if a GPU hangs."""
    from harness.launch.fit import check_fit
    from harness.machine.gpu import NVIDIA_SMI_LIMIT_S
    from harness.machine.limits import Look

    return Look(lambda: list(check_fit(plan)), NVIDIA_SMI_LIMIT_S).result()


def _needs(plan: Plan) -> Needs:
    """Return the memory, files and processes that runs of ``plan`` need at one time. All arms run together, unless
    ``interleave`` is "runs".
    """
    from harness.launch.needs import needs_of
    from harness.study.contract import PROFILED

    configs = [arm.config for arm in plan.arms if arm.control != PROFILED]
    return needs_of(configs, together=plan.scenario.interleave != "runs")


def _calibrate(threads: int | None) -> bool:
    """Measure and cache the FLOP/s and bytes/s of this CPU. Return False if a package cannot be imported. ``threads``:
    number of torch's threads; None: torch's choice.
    """
    try:
        import torch  # takes a second or two

        from trainer.devices.calibrate import calibrate

        threads = threads or torch.get_num_threads()
    except Exception as error:  # A broken package may raise anything.
        print(f"harness: cannot calibrate: {in_words(error)}", file=sys.stderr)
        return False
    threads_text = f"{threads} thread{'s' if threads > 1 else ''}"
    print(f"measuring this CPU with {threads_text}: 5 to 20 seconds", file=sys.stderr)
    calibrate(threads)
    return True


def worst(checks: Sequence[Check]) -> str:
    statuses = {check.status for check in checks}
    return next(status for status in ("fail", "warn", "ok") if status in statuses)


def lines_of(check: Check) -> Iterator[str]:
    """Yield the lines of a check: status, name and finding, then its fix. No line is longer than ``COLUMNS``."""
    head = f"{check.status:<6}{check.name:<{NAME_COLUMNS}}"
    yield from _wrapped(check.finding, head)
    if check.fix:
        yield from _wrapped(f"fix: {check.fix}", INDENT)


def conclusion(checks: Sequence[Check], scenario: bool = False) -> str:
    """Return the last line: if ``harness run`` works here, and the number of checks by status. ``scenario``: True if a
    scenario file was checked as well; the line then also says what was not checked.
    """
    counts = Counter(check.status for check in checks)
    ability = "harness run works here"
    if scenario:
        ability = "harness run can start here (not checked: contents of files and your own code)"
    if counts["fail"]:
        ability = "harness run cannot work here"
    return f"{ability}: {counts['ok']} ok, {counts['warn']} warn, {counts['fail']} fail"


def _wrapped(text: str, head: str) -> list[str]:
    """Return ``text`` as lines of at most COLUMNS characters: ``head`` begins the first one, INDENT the others. Lines
    do not break at hyphens.
    """
    first = head if head.endswith(" ") else f"{head} "
    return textwrap.wrap(text, COLUMNS, initial_indent=first, subsequent_indent=INDENT, break_on_hyphens=False)


def _print(checks: Sequence[Check], scenario: bool = False) -> None:
    """Print the checks and the conclusion: in colour on a terminal with a working colour package, else plain.

    ``scenario``: True if a scenario file was checked as well.
    """
    try:
        from rich.console import Console
        from rich.text import Text
    except Exception:  # A broken package may raise anything; the check of packages reports it.
        coloured = False
    else:
        coloured = sys.stdout.isatty()
    if not coloured:
        for check in checks:
            print(*lines_of(check), sep="\n")
        print(conclusion(checks, scenario))
        return
    console = Console(highlight=False, soft_wrap=True)
    for check in checks:
        text = Text("\n".join(lines_of(check)))
        text.stylize(STYLES[check.status], 0, len(check.status))
        console.print(text)
    console.print(Text(conclusion(checks, scenario), style=STYLES[worst(checks)]))
