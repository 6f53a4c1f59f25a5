"""Hostile scenario texts and command-line arguments, generated from valid ones.

``python -m tests.campaigns faults.scenarios --count 300``: values replaced, keys renamed, bytes changed and cut, YAML's
own traps, and every option of every command with hostile values. Nothing runs: scenarios are planned
(``harness run --plan``).
Asked: exit code 2 with one line for each mistake or, where the input stayed valid, 0; no traceback, no hang.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from harness.cli import COMMANDS
from tests.campaigns.faults.common import Counts, forked, parser
from tests.campaigns.faults.hostile import ARGUMENTS, HOSTILE, TEXTS, VALID

LIMIT_S = 30.0
LIMIT_BYTES = 6 * 2**30  # of address space: what needs more was not bounded


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a nested value, itself first."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*at, key))


def changed(chance: random.Random) -> bytes:
    """One hostile text."""
    kind = chance.randrange(5)
    text = yaml.safe_dump(VALID, sort_keys=False).encode()
    if kind == 0:
        return chance.choice(TEXTS).encode("utf-8", "surrogatepass")
    if kind == 1:  # cut, or bytes changed
        data = bytearray(text[: chance.randrange(len(text))] if chance.random() < 0.3 else text)
        for _ in range(chance.choice((1, 1, 1, 5))):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(chance.choice((128, 256)))
        return bytes(data)
    content = copy.deepcopy(VALID)
    where = chance.choice([path for path in paths(content) if path])
    holder: Any = content
    for key in where[:-1]:
        holder = holder[key]
    if kind == 2 and isinstance(holder, dict):  # a key renamed
        holder[chance.choice([name for name in HOSTILE if isinstance(name, str | int | float | None)])] = holder.pop(
            where[-1]
        )
    else:
        holder[where[-1]] = chance.choice(HOSTILE)
    return yaml.dump(content, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def options() -> list[tuple[str, str, str | None]]:
    """(command, action or "", option) for every option that takes a value; None for a positional."""
    found = []
    for name, command in COMMANDS.items():
        one = argparse.ArgumentParser()
        command.add_arguments(one)
        found += [(name, *place) for place in _of(one, "")]
    return found


def _of(one: argparse.ArgumentParser, action: str) -> Iterator[tuple[str, str | None]]:
    for argument in one._actions:
        if isinstance(argument, argparse._SubParsersAction):
            for name, inner in argument.choices.items():
                yield from _of(inner, name)
        elif not argument.option_strings:
            yield action, None
        elif argument.nargs != 0:
            yield action, argument.option_strings[-1]


def command_lines(chance: random.Random, valid: Path, folder: Path) -> Iterator[list[str]]:
    """Command lines that end before anything runs: the study that they name is not there, or a scenario is planned."""
    every = options()
    scenarios = [one for one in every if one[0] in ("run", "regress")]  # they read the most
    while True:
        command, action, option = chance.choice(chance.choice((every, scenarios)))
        words = [command, *([action] if action else [])]
        value = chance.choice(ARGUMENTS)
        if option is not None:
            words += [option, value] if chance.random() < 0.5 else [f"{option}={value}"]
        if command == "run":
            yield [*words, *([str(valid)] if option else [value]), "--plan"]
        elif command in ("schema", "doctor"):
            yield [*words, "--no-such-option"]
        else:
            missing = str(folder / "missing")
            base = ["--base", missing] if command == "regress" and option != "--base" else []
            yield [*words, *base, *([missing] if option else [value]), *([missing] if chance.random() < 0.3 else [])]


def bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))


def main() -> int:
    arguments = parser(__doc__, 300).parse_args()
    counts = Counts("hostile scenarios and arguments")
    chance = random.Random(arguments.seed)
    importlib.import_module("harness.scenario.plan")  # what every fork needs
    with TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name, "hostile")
        folder.mkdir()
        valid, file = folder / "valid.yaml", folder / "hostile.yaml"
        valid.write_text(yaml.safe_dump(VALID, sort_keys=False))
        before = forked(["run", str(valid), "--plan"], LIMIT_S)
        if before.code != 0:
            sys.exit(f"the scenario is not even valid unchanged: {before.err}")
        lines = command_lines(chance, valid, folder)
        for number in range(arguments.count):
            if number % 2 == 0:
                file.write_bytes(changed(chance))
                words, what = ["run", str(file), "--plan"], repr(file.read_bytes()[:1500])
            else:
                words = next(lines)
                what = repr([word[:80] for word in words])
            ended = forked(words, LIMIT_S, bounded)
            if counts.of(ended, {0, 2}, what) and ended.code == 2:
                said = ended.err.splitlines()
                listed = len(said) > 1 and " more)" in said[0] and all(line.startswith("harness: ") for line in said)
                if len(said) != 1 and not listed:
                    counts.bad(f"{len(said)} lines", f"{what}: {ended.err[:600]!r}")
                elif "\x1b" in ended.err:
                    counts.bad("terminal escape", f"{what}: {ended.err[:300]!r}")
    return counts.finish()


if __name__ == "__main__":
    sys.exit(main())
