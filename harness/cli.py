"""Command line: one table of commands. Each command's module owns its arguments and is imported when chosen.

Nothing heavy is imported here: ``harness --help`` imports no command, and a command's ``--help`` no pydantic or torch.

Exit codes: 0 done; 1 a run failed, data differ, the disk is full, or a budget was reached; 2 invalid input (one line
with the reason); 3 a regression was found; 4 undecided; 130 interrupted (Ctrl-C, SIGTERM, SIGHUP); 141 the reader of
the output has gone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn

from harness import __version__
from harness.commands.actions import Command
from harness.launch import ending
from trainer.errors import MACHINE_FAULTS, InputError, visible
from trainer.files import check_utf8, final_name

SIGPIPE_EXIT = 141  # 128 + SIGPIPE, as in shells
MAX_ERROR_CHARACTERS = 500  # maximum characters of a text that cannot be encoded
MOST_MISTAKES = 20  # mistakes listed per file after the first


# Each text fits one line of a terminal of 80 columns.
GROUPS = {
    "Explain where the time goes": {
        "exec": Command("exec:execute", "run any training command, and report where its time went"),
        "watch": Command("watch:watch", "show where the time of a running training goes"),
        "profile": Command("profile:profile", "profile a few steps of a running training"),
        "run": Command("run:run", "run a scenario into a new study, or complete a study"),
        "init": Command("init:init", "write a scenario for your own command, loop, data or text"),
        "explain": Command(
            "report:explain", "print the answer of a study, or --json for a program", "add_explain_arguments"
        ),
        "report": Command("report:report", "rebuild the report of a study from its tables"),
        "trace": Command("trace:trace", "show the timeline of a study in Perfetto"),
        "whatif": Command("whatif:whatif", "predict the step time under changes"),
    },
    "Guard against slowdowns": {
        "regress": Command("regress:regress", "compare two states of the code, side by side"),
        "compare": Command("compare:compare", "compare two studies recorded at different times"),
        "baseline": Command("baseline:baseline", "keep figures in git, and check studies against them"),
    },
    "Check what is there": {
        "doctor": Command("doctor:doctor", "check that this machine is fit for studies, with fixes"),
        "audit": Command("audit:audit", "check a published results table against itself"),
        "list": Command(
            "reference:list_shipped", "list the shipped scenarios, sweeps and tables", "add_list_arguments"
        ),
        "schema": Command("reference:schema", "print the JSON Schema of scenario files", "add_schema_arguments"),
        "completion": Command(
            "reference:completion", "print a script that completes these commands", "add_completion_arguments"
        ),
    },
    "Train a model": {
        "train": Command("train:train", "train one arm to its end, with checkpoints, or resume it"),
        "sweep": Command("sweep:sweep", "search the best learning rate of a training"),
        "cost": Command("cost:cost", "predict hours and money of a training from a few steps"),
        "evaluate": Command("evaluate:evaluate", "ask a trained model multiple-choice questions"),
        "generate": Command("generate:generate", "generate text with a trained model"),
        "plot": Command("plot:plot", "draw losses and multiple choice of several runs"),
        "spent": Command("cost:spent", "add up the time and money spent on trainings", "add_spent_arguments"),
    },
    "Data in and out": {
        "data": Command("data:data", "tokenize, convert, deduplicate and verify data"),
        "import": Command("import_:read", "read a model or log of another trainer"),
        "export": Command("export:export", "write a trained model as a file of another trainer"),
        "upload": Command("upload:upload", "copy a folder of results to a URL, or complete the copy"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
FIRST = "Start with: harness exec -- python train.py\nArguments of a command: harness COMMAND --help"


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises InputError instead of exiting.

    ``command``: the command whose arguments the parser adds before it first parses; None: no command.
    """

    def __init__(self, command: Any = None, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._command = command
        self.set_defaults(parser=self)  # the innermost parser wins: an error lists its options

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.fill()
        return super().parse_known_args(args, namespace)

    def fill(self) -> None:
        """Import the command's module and add its arguments to this parser. Later calls do nothing."""
        if self._command is not None:
            command, self._command = self._command, None
            command.add_arguments(self)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


class _Entrance(_Parser):
    """Parser of the whole command line. Its help lists the commands by group."""

    def format_help(self) -> str:
        layout = self._get_formatter()
        layout.add_usage(self.usage, self._actions, ())
        layout.add_text(self.description)
        for title, commands in GROUPS.items():
            layout.start_section(title)
            layout.add_arguments([argparse.Action([], name, help=one.help) for name, one in commands.items()])
            layout.end_section()
        layout.start_section("Options")
        layout.add_arguments([action for action in self._actions if action.option_strings])
        layout.end_section()
        layout.add_text(self.epilog)
        return layout.format_help()


def _parser() -> _Parser:
    parser = _Entrance(
        prog="harness",
        description="Where each training step's time goes, and what a change buys.",
        epilog=FIRST,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    each = [commands.add_parser(name, help=command.help, command=command) for name, command in COMMANDS.items()]
    parser.set_defaults(everything=partial(_with_all_arguments, parser, each))
    return parser


def _with_all_arguments(parser: _Parser, commands: Sequence[_Parser]) -> _Parser:
    for command in commands:
        command.fill()
        for listed in command._actions:
            if isinstance(listed, argparse._SubParsersAction):
                _with_all_arguments(parser, list(listed.choices.values()))
    return parser


def _parse(argv: list[str]) -> argparse.Namespace:
    _check_name("unknown command", argv[:1], list(COMMANDS))
    if argv and argv[0] in COMMANDS:
        actions = getattr(COMMANDS[argv[0]].module(), "ACTIONS", {})
        _check_name(f"{argv[0]}: unknown action", argv[1:2] if actions else [], list(actions))
    for word in argv:
        if word.startswith("--") and word.endswith("=--"):  # argparse turns it into an empty list
            raise InputError(f"{word.removesuffix('=--')}: '--' is not a value")
    arguments, extra = _parser().parse_known_args(argv)
    if extra:
        chosen: argparse.ArgumentParser = arguments.parser
        options = [option for action in chosen._actions for option in action.option_strings]
        raise InputError(
            f"{chosen.prog.removeprefix('harness ')}: unknown argument {extra[0]!r}{_nearest(extra[0], options)} "
            f"allowed: {', '.join(option for option in options if option.startswith('--'))}"
        )
    parsed: argparse.Namespace = arguments
    return parsed


def _check_name(what: str, given: list[str], allowed: Sequence[str]) -> None:
    """Raise InputError, which begins with ``what``, for a word that is neither an option nor in ``allowed``."""
    for word in given:
        if not word.startswith("-") and word not in allowed:
            raise InputError(f"{what} {word!r}{_nearest(word, allowed)} allowed: {', '.join(allowed)}")


def _nearest(word: str, allowed: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, allowed, n=1)
    return f"; did you mean {near[0]!r}?" if near else ";"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code (see the module). ``argv``: words after "harness"; None: sys.argv."""
    parts = list(sys.argv[1:] if argv is None else argv)
    ending.open_missing_outputs()
    try:
        with ending.terminable():
            return _run(parts)
    except BrokenPipeError:  # the reader has gone (| head)
        ending.silence_gone_outputs()
        return SIGPIPE_EXIT
    finally:
        ending.flush_outputs()


def _run(parts: list[str]) -> int:
    try:
        _check_names(parts)
        arguments = _parse(parts)
        status = COMMANDS[arguments.command].function()(arguments, ["harness", *parts])
        sys.stdout.flush()
    except InputError as error:
        for line in (str(error), *error.others[:MOST_MISTAKES]):
            print(f"harness: {visible(line)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("harness: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except UnicodeEncodeError as error:
        if not "\ud800" <= error.object[error.start] <= "\udfff":
            raise
        # A lone surrogate represents a byte that is not UTF-8.
        print(
            f"harness: {visible(error.object)[:MAX_ERROR_CHARACTERS]}: is not UTF-8; rename it, or its folder",
            file=sys.stderr,
        )
        return 2
    except OSError as error:  # a full disk, an unreadable folder: existing output stays
        where = visible(final_name(str(error.filename or "input or output")))
        print(f"harness: {where}: {error.strerror or visible(str(error))}", file=sys.stderr)
        return 1 if error.errno in MACHINE_FAULTS else 2
    except (ImportError, MemoryError) as error:
        if (reason := _no_memory(error)) is None:
            raise
        print(f"harness: {reason}", file=sys.stderr)
        return 1
    return status


def _check_names(parts: list[str]) -> None:
    """Raise InputError for an argument that is not UTF-8, except for words after ``--`` and ``--against``."""
    for before, part in pairwise(["harness", *parts]):
        if part == "--":
            return
        if before != "--against":
            check_utf8(part, before if before.startswith("--") else "argument")


def _no_memory(error: ImportError | MemoryError) -> str | None:
    """Return a message if ``error`` means that memory was too small; None if it has another cause."""
    import resource

    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    limited = limit_bytes != resource.RLIM_INFINITY
    if isinstance(error, ModuleNotFoundError) or (isinstance(error, ImportError) and not limited):
        return None
    if not limited:
        return "out of memory"
    return f"out of memory: the address space is limited to {limit_bytes >> 20} MiB; fix: ulimit -v unlimited"
