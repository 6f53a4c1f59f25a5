"""harness train: trains one arm to its end, with checkpoints, a table of losses and their curve."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import PATHS_NOTE, SCENARIO_HELP, name_file, refuse_ranks
from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import shell_word

if TYPE_CHECKING:
    from harness.launch.progress import Goal
    from harness.launch.training import Trained
    from trainer.telemetry import Validation

OUT = "results/train"
MAX_TRAIN_STEPS = 10_000_000_000
EXITS = {"done": 0, "failed": 1, "interrupted": 130}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = PATHS_NOTE
    parser.add_argument("scenario", metavar="SCENARIO", help=SCENARIO_HELP)
    parser.add_argument("--arm", metavar="NAME", help="the arm to train; needed if there are several")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--steps", type=int, metavar="N", help="total optimizer steps (default: the scenario's steps)")
    end.add_argument("--epochs", type=float, metavar="E", help="number of times to train on each document")
    end.add_argument("--tokens", type=int, metavar="T", help="total positions to compute, padding included")
    parser.add_argument("--out", metavar="DIR", help=f"the training's folder (default: {OUT}/SCENARIO/ARM)")
    parser.add_argument(
        "--upload", metavar="URL", help="copy the folder there at each checkpoint and at the end (s3://BUCKET/FOLDER)"
    )
    parser.add_argument("--resume", action="store_true", help="continue the training in --out")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="set a dotted key of base (checkpoint.every_steps=100); may be repeated",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="start even if it cannot fit into the free memory")
    parser.add_argument(
        "--rate-of", metavar="DIR",
        help="use the learning rate chosen by this sweep (its folder, or a folder of sweeps: the newest)",
    )  # fmt: skip


def train(arguments: argparse.Namespace, command: list[str]) -> int:
    """Train the arm to its end, and print how it ended and its files. Return the exit code."""
    begun_s = time.monotonic()
    refuse_ranks("train")
    goal = goal_of(arguments)
    from harness.scenario.load import load_scenario
    from harness.scenario.plan import make_plan

    sets = list(arguments.set)
    rate = None if arguments.rate_of is None else _rate_of(arguments.rate_of, sets)
    if seeds := [setting for setting in sets if setting.partition("=")[0].strip() == "seed"]:
        raise InputError(
            f"--set {seeds[0]}: has no effect: it is the seed of the order of a study's arms; give base.{seeds[0]}, of "
            "weights and documents"
        )
    name_file(arguments.scenario)
    scenario = load_scenario(arguments.scenario, sets)
    plan = make_plan(scenario, arguments.scenario, [arguments.arm] if arguments.arm else [])
    if rate is not None and (
        differing := [arm.name for arm in plan.arms if arm.config.optimizer.learning_rate != rate]
    ):
        raise InputError(f"--rate-of: arm {differing[0]} sets its own optimizer.learning_rate; remove one of them")
    from harness.launch.tracking.trackers import warn_of_missing
    from harness.launch.train_arm import train_arm
    from harness.launch.training import TrainingOptions
    from harness.show.plotted_runs import draw_losses

    names = [arm.name for arm in plan.arms if arm.control is None]
    out = Path(arguments.out) if arguments.out else Path(OUT) / scenario.name / names[0]
    from harness.commands.budgets import say_cost, stopped_line, training_allowance
    from harness.commands.upload import finish_upload, uploader_of

    allowance = training_allowance(plan, out, command, arguments.scenario, begun_s)
    warn_of_missing(scenario.track)
    url = arguments.upload or scenario.upload
    uploader = None if url is None else uploader_of(out, url)
    options = TrainingOptions(arguments.resume, arguments.force, allowance, uploader)
    trained = train_arm(plan, goal, out, command, arguments.scenario, options)
    say(f"{trained.status}: {trained.steps:,} steps, {trained.tokens:,} tokens{_losses(trained)}")
    say(_what_lies_there(trained.folder))
    say_cost(trained.folder)
    if trained.stopped and trained.error is None:
        print(stopped_line(trained.folder, None), file=sys.stderr)
    elif trained.status == "interrupted":
        print("interrupted; continue with the same command and --resume", file=sys.stderr)
    elif trained.error is not None:
        print(f"harness: {trained.error}; {_way_on(trained)}", file=sys.stderr)
    try:
        draw_losses(trained.folder, names[0])  # Drawing may fail on a full disk, so it comes after the messages.
    finally:
        uploaded = uploader is None or finish_upload(out, uploader)
    if scenario.track and trained.part is not None:
        from harness.launch.tracking.tracked_study import track_part
        from harness.launch.training_files import EVALUATIONS, LOSSES

        files = [trained.folder / name for name in (LOSSES, EVALUATIONS, "loss.png")]
        track_part(trained.folder, trained.part, scenario.track, scenario.limits.tracking_s, files)
    status = EXITS["failed"] if trained.stopped else EXITS[trained.status]
    return status if uploaded else status or EXITS["failed"]


def _losses(trained: Trained) -> str:
    """Return the last losses and scores of a training as text, each with a leading comma; "" without any."""
    losses = "" if trained.loss is None else f", loss {trained.loss:.4f}"
    if (validation := trained.validation) is not None:
        losses += f", validation loss {validation.loss:.4f}{_after(validation, trained.steps)}"
    if (choices := trained.choices) is not None:
        norm = "" if choices.acc_norm is None else f", acc_norm {choices.acc_norm:.4f}"
        losses += f", multiple choice acc {choices.acc:.4f}{norm}{_after(choices, trained.steps)}"
    return losses


def _after(one: Validation, steps: int) -> str:
    """Return `` (after N steps)`` for an evaluation pass; "" if it followed the last of ``steps`` steps."""
    return "" if one.step + 1 == steps else f" (after {one.step + 1:,} steps)"


def _what_lies_there(folder: Path) -> str:
    """Return a line that lists the files of a training's folder, with the command for its report if there is any."""
    from harness.launch.training_files import CHECKPOINTS, LOSSES, has_rows
    from trainer.checkpoint_folder import written

    names = [LOSSES, "loss.png"] if has_rows(folder / LOSSES) else []
    names += ["checkpoints"] * bool(written(folder / CHECKPOINTS))
    kept = f" ({', '.join(names)})" if names else ""
    line = f"training: {folder}{kept}"
    measured = any(folder.glob("runs/*/*/run.json"))
    return f"{line}; where its time went: harness report {shell_word(folder)}" if measured else line


def _way_on(trained: Trained) -> str:
    """Return what to do after a failed training. A diverged one would diverge again from its last checkpoint."""
    from harness.launch.training_files import CHECKPOINTS
    from trainer.checkpoint_folder import written

    if trained.diverged:
        return "--resume would fail in the same way: change the settings, and start in another --out"
    if not written(trained.folder / CHECKPOINTS):
        return "no checkpoint was saved, so --resume starts it again"
    return "continue from the last checkpoint with --resume"


def _rate_of(place: str, sets: list[str]) -> float:
    """Return the learning rate that the sweep in ``place`` chose, and append it to ``sets`` as an override."""
    from harness.sweep.store import chosen_rate

    rate, folder = chosen_rate(place, "--rate-of")
    print(f"learning rate {rate:.4g}, chosen by {folder}", file=sys.stderr)
    sets.append(f"optimizer.learning_rate={rate!r}")
    return rate


def goal_of(arguments: argparse.Namespace) -> Goal | None:
    """Return the length from --steps, --epochs or --tokens; None: the scenario's. InputError for an impossible one."""
    from harness.launch.progress import Goal

    for name in ("steps", "tokens", "epochs"):
        value = getattr(arguments, name)
        most = MAX_TRAIN_STEPS * (1_000_000 if name == "tokens" else 1)
        if value is not None and not 0 < value <= most:
            raise InputError(f"--{name}: {value}; allowed: more than 0, at most {most:,}")
    if arguments.steps is arguments.epochs is arguments.tokens is None:
        return None
    return Goal(arguments.steps, arguments.epochs, arguments.tokens)
