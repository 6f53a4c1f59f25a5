"""Adds and interprets the arguments that several commands share."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import InputError, visible

if TYPE_CHECKING:
    from harness.regress.decision import Limits
    from harness.scenario.plan import Plan

DEFAULT_OUT = "results"
SCENARIO_HELP = "scenario file; NAME is NAME.yaml in this folder, else a shipped one (harness list)"
STUDY_HELP = "study folder; results/NAME is the newest study of that scenario"
OTLP_URL = re.compile(r"https?://[^\s/]+\S*")
MOST_USD = 1e6  # limit of a price in an option
PATHS_NOTE = "Relative paths in a scenario (corpus, tokenizer) are relative to the current directory."


def add_study(parser: argparse.ArgumentParser) -> None:
    """Add STUDY: a study's folder, or the folder of its scenario."""
    parser.add_argument("study", metavar="STUDY", help=STUDY_HELP)


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add PID|STUDY: a program that ``harness exec`` records now."""
    parser.add_argument(
        "target",
        nargs="?",
        metavar="PID|STUDY",
        help="a process of the command that `harness exec` runs, or its study folder (default: the only such command)",
    )


def add_port(parser: argparse.ArgumentParser, of: str) -> None:
    """Add --port, the port on loopback of what ``of`` names."""
    parser.add_argument("--port", type=int, metavar="N", help=f"port of {of} (default: any free one)")


def checked_port(given: int | None) -> int:
    """Return the value of --port; 0, which stands for any free port, for None. Raises InputError outside 0 to 65535."""
    port = given or 0
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port}: 0 (any free one) to 65535")
    return port


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add --otlp and --prometheus, which export the figures of a running training."""
    parser.add_argument(
        "--otlp",
        metavar="URL",
        help="send metrics, findings (events) and two steps of each block (traces) to this OpenTelemetry receiver "
        "(OTLP over HTTP), such as http://localhost:4318",
    )
    parser.add_argument("--prometheus", type=int, metavar="PORT", help="serve metrics on loopback for Prometheus")


def checked_export(arguments: argparse.Namespace, command: str) -> list[str]:
    """Return the options of --otlp and --prometheus; empty without. Raises InputError if one of them cannot work."""
    options: list[str] = []
    if arguments.otlp is not None:
        if not OTLP_URL.fullmatch(arguments.otlp):
            raise InputError(f"{command}: --otlp {arguments.otlp}: allowed: http://HOST:PORT or https://HOST:PORT")
        options += ["--otlp", arguments.otlp]
    if arguments.prometheus is not None:
        if not 1 <= arguments.prometheus <= 65535:
            raise InputError(f"{command}: --prometheus {arguments.prometheus}: allowed: 1 to 65535")
        from harness.show.server import LOOPBACK

        try:
            socket.create_server((LOOPBACK, arguments.prometheus)).close()
        except OSError as error:
            raise InputError(f"{command}: --prometheus {arguments.prometheus}: {error.strerror}") from error
        options += ["--prometheus", str(arguments.prometheus)]
    if options:
        from harness.show.metrics import check_installed

        check_installed()
    return options


def study_path(given: str | Path) -> Path:
    """Return the study's folder ``given``, or the newest study below it, which a line on stderr then names."""
    from harness.study.store import find_study

    path = Path(given)
    study = find_study(path)
    if study != path:
        print(visible(f"{path}: the newest study is {study.name}"), file=sys.stderr)
    return study


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add --set, which overrides keys of a scenario, and --arm, which selects arms."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a dotted key of base (data.batch_size=2) or of the scenario (seed=1; base.seed is the trainer's); "
        "VALUE is YAML; arms and matrix still override it; may be repeated",
    )
    add_arm(parser)


def add_arm(parser: argparse.ArgumentParser) -> None:
    """Add --arm, which selects arms."""
    parser.add_argument(
        "--arm", action="append", default=[], metavar="NAME", help="only this arm (a glob pattern); may be repeated"
    )


def add_wait_until_quiet(parser: argparse.ArgumentParser, goes_with: str = "") -> None:
    """Add --wait-until-quiet. ``goes_with``: start of its help text, such as the options that it needs."""
    parser.add_argument(
        "--wait-until-quiet", type=float, metavar="MINUTES",
        help=f"{goes_with}before block 0, wait until other processes use less than 0.25 cores, at most " "MINUTES",
    )  # fmt: skip


def add_limits(parser: argparse.ArgumentParser, within: str) -> None:
    """Add --within (default ``within``), --memory-within and --startup-within: changes that count as none."""
    parser.add_argument(
        "--within",
        default=within,
        metavar="SHARE",
        help="largest change of the step time that counts as the same (default: %(default)s)",
    )
    parser.add_argument(
        "--memory-within",
        default="5%",
        metavar="SHARE",
        help="largest change of peak memory that counts as the same, or off (default: %(default)s)",
    )
    parser.add_argument(
        "--startup-within",
        default="20%",
        metavar="SHARE",
        help="largest change of startup time that counts as the same, or off (default: %(default)s)",
    )


def add_undecided(parser: argparse.ArgumentParser) -> None:
    """Add --undecided-exit, the exit code if nothing could be decided."""
    parser.add_argument(
        "--undecided-exit", default="4", metavar="N", help="exit code if the result is undecided (default: 4)"
    )


def add_comparing(parser: argparse.ArgumentParser) -> None:
    """Add the options of a comparison of two studies: limits, exit code, --allow (keys that may differ), --json."""
    add_limits(parser, within="5%")
    add_undecided(parser)
    parser.add_argument(
        "--allow", action="append", default=[], metavar="KEY",
        help="compare although this key differs (see the error message); may be repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def name_file(given: str) -> None:
    """Print on stderr that ``given`` (mine) is the file mine.yaml of the current folder, if that file is used. Prints
    nothing for a path or a shipped scenario. Raises InputError for a plain name without a file.
    """
    from harness.scenario.load import SCENARIOS, find_file

    path = find_file(given, SCENARIOS)
    if not path.is_absolute() and path != Path(given):
        print(visible(f"{given}: the file {path} of this folder"), file=sys.stderr)


def load_plan(arguments: argparse.Namespace) -> Plan:
    """Load the scenario that ``arguments`` name, with --set and --arm, and return the plan of its runs."""
    from harness.scenario.load import load_scenario
    from harness.scenario.plan import make_plan

    name_file(arguments.scenario)
    return make_plan(load_scenario(arguments.scenario, arguments.set), arguments.scenario, arguments.arm)


def limits_of(arguments: argparse.Namespace) -> Limits:
    """Return the limits of the options of :func:`add_limits`. Raises InputError if one is not a share."""
    from harness.regress.decision import Limits, read_limit, read_share

    return Limits(
        read_share(arguments.within, "--within"),
        read_limit(arguments.memory_within, "--memory-within"),
        read_limit(arguments.startup_within, "--startup-within"),
    )


# Environment variables of each process that a launcher of ranks starts: (launcher, rank, number of ranks). A batch
# script of Slurm is a single process without the number of a step's tasks.
_RANKS = (("torchrun", "RANK", "WORLD_SIZE"), ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


def refuse_ranks(command: str) -> None:
    """Raise InputError if torchrun or srun started this command several times, because each would run a whole study."""
    for launcher, rank, world in _RANKS:
        number, count = os.environ.get(rank, ""), os.environ.get(world, "")
        if number.isdigit() and count.isdigit() and int(count) > 1:
            raise InputError(
                f"{command}: {launcher} started it {count} times ({world}={count}, {rank}={number}): as many "
                f"studies would disturb each other. Start `harness {command} ...` "
                f"once, without {launcher} (or unset {world}); a distributed program of yours: "
                "`harness exec -- torchrun ... train.py`"
            )


def add_trained_model(parser: argparse.ArgumentParser) -> None:
    """Add --model: a trained model of any origin (training, checkpoint, transformers folder, llm.c file)."""
    parser.add_argument(
        "--model", metavar="CHECKPOINT", required=True,
        help="a training's folder (its newest checkpoint), a checkpoint, a folder of transformers, or a model file of "
        "llm.c; or a URL of one of these",
    )  # fmt: skip


def add_upload(parser: argparse.ArgumentParser) -> None:
    """Add --upload, the URL to which the command also copies its output folder."""
    parser.add_argument("--upload", metavar="URL", help="also copy the folder there (s3://BUCKET/FOLDER)")


def add_its_tokenizer(parser: argparse.ArgumentParser) -> None:
    """Add --tokenizer, which replaces the tokenizer of the model."""
    parser.add_argument(
        "--tokenizer", metavar="NAME",
        help="a tokenizer.json, a folder for AutoTokenizer or a SentencePiece .model (default: that of the model)",
    )  # fmt: skip
