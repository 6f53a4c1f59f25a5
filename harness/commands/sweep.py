"""harness sweep: searches the learning rate of a training, trial after trial, and reports its optimum."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import PATHS_NOTE, add_upload, refuse_ranks
from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import shell_word

if TYPE_CHECKING:
    from harness.launch.uploads import Uploader
    from harness.sweep.load import LoadedSweep
    from harness.sweep.run import SweepEnded

OUT = "results/sweeps"
EXITS = {"done": 0, "failed": 1, "budget": 1, "diverged": 1, "interrupted": 130}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = PATHS_NOTE
    parser.add_argument("sweep", nargs="?", metavar="SWEEP", help="sweep file, or the name of a shipped one")
    parser.add_argument(
        "--plan", "--dry-run", action="store_true", dest="plan", help="print the trials (and brackets), and run nothing"
    )
    parser.add_argument(
        "--cost", action="store_true", help="train a few steps of each trial size, and print the hours and cost of all"
    )
    parser.add_argument("--out", default=OUT, metavar="DIR", help="folder for sweeps (default: %(default)s)")
    parser.add_argument("--resume", metavar="DIR", help="complete the sweep in this folder")
    add_upload(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="set a key of the sweep (strategy=greedy) or a dotted key of its base (model.layers=2); with --resume "
        "keys of budget and limits; may be repeated",
    )  # fmt: skip


def sweep(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run a sweep or (--resume) its rest, and print the result. --plan and --cost only print the trials or the cost."""
    refuse_ranks("sweep")
    if arguments.resume is not None:
        return _resumed(arguments, command)
    if arguments.sweep is None:
        raise InputError("sweep: give a file (sweeps/*.yaml), the name of a shipped one, or --resume DIR")
    from harness.sweep.load import load_sweep

    loaded = load_sweep(arguments.sweep, arguments.set)
    if arguments.plan:
        for line in _plan(loaded):
            say(line)
        return 0
    from harness.sweep.begin import begin_sweep

    for line in _plan(loaded, compared=not arguments.cost):
        print(line, file=sys.stderr)
    if arguments.cost:
        return _cost(loaded, command, arguments.sweep)
    copy = _SweepCopy(arguments.upload)
    if arguments.upload is not None:  # Check the destination before a folder is made.
        copy.begin(Path(arguments.out) / loaded.settings.name, started=False)
    return _finish(begin_sweep(loaded, Path(arguments.out), command, arguments.sweep, copy), copy)


class _SweepCopy:
    """Copies the sweep's folder to ``url`` after each trial and at the end. Does nothing if ``url`` is None."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self.uploader: Uploader | None = None

    def begin(self, folder: Path, *, started: bool = True) -> None:
        if self._url is not None:
            from harness.commands.upload import uploader_of

            self.uploader = uploader_of(folder, self._url)
            if started:
                self.uploader.begin()

    def ask(self) -> None:
        if self.uploader is not None:
            self.uploader.ask()


def _plan(loaded: LoadedSweep, *, compared: bool = True) -> list[str]:
    from harness.sweep.begin import configs_of
    from harness.sweep.messages import plan_lines, warmup_lines

    configs, strategy = configs_of(loaded, compared=compared), loaded.settings.strategy
    space = configs.space()
    step_tokens = configs.step_tokens(configs.base)
    steps = loaded.settings.steps
    parameters = configs.parameters(configs.base) if steps == "compute-optimal" else None
    title = f"sweep {loaded.settings.name}, strategy {strategy.name}"
    stages = strategy.stages(space)
    cut = warmup_lines(*configs.warmup(configs.base), stages)
    return [*plan_lines(title, stages, space, step_tokens, parameters), *cut, *loaded.notes]


def _cost(loaded: LoadedSweep, command: list[str], source: str) -> int:
    from harness.sweep.begin import cost_of_sweep
    from harness.sweep.budget import BudgetOver
    from harness.sweep.messages import cost_lines
    from harness.sweep.trial_run import TrialFailed

    try:
        cost = cost_of_sweep(loaded, command, source)
    except (TrialFailed, BudgetOver) as failed:
        print(f"harness: {failed}", file=sys.stderr)
        return 1
    for line in cost_lines(cost.needs, cost.measuring_s, cost.price_usd_per_hour, evaluated=cost.evaluated):
        say(line)
    return 0


def _resumed(arguments: argparse.Namespace, command: list[str]) -> int:
    options = {
        "SWEEP": arguments.sweep,
        "--plan": arguments.plan,
        "--cost": arguments.cost,
        "--out": arguments.out != OUT,
    }
    for name, value in options.items():
        if value:
            raise InputError(f"sweep --resume: {name} cannot be combined with it: a resumed sweep keeps its settings")
    from harness.sweep.begin import resume_sweep
    from harness.sweep.load import settings_with
    from harness.sweep.store import SweepFolder

    path = Path(arguments.resume)
    budget = settings_with(SweepFolder(path).read().settings, arguments.set) if arguments.set else None
    copy = _SweepCopy(arguments.upload)
    return _finish(resume_sweep(path, command, budget, copy), copy)


def _finish(ended: SweepEnded, copy: _SweepCopy) -> int:
    from harness.commands.upload import finish_upload
    from harness.sweep.report import write_report

    folder = ended.folder
    lines = write_report(folder)
    for line in lines:
        say(line)
    say(f"summary: {folder.summary_md}")
    if ended.status == "interrupted":
        print(f"interrupted; continue with: harness sweep --resume {shell_word(folder.path)}", file=sys.stderr)
    elif ended.error is not None:
        print(f"harness: {ended.error}; resume it: harness sweep --resume {shell_word(folder.path)}", file=sys.stderr)
    if copy.uploader is not None and not finish_upload(folder.path, copy.uploader):
        return EXITS[ended.status] or EXITS["failed"]
    return EXITS[ended.status]
