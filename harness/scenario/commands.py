"""Scenarios whose arms are commands: unmodified programs with different arguments in each arm.

    command: python train.py --workers {workers} --batch {batch}
    base: {batch: 8}
    arms: {inline: {workers: 0}, two: {workers: 2}}
    matrix: {batch: [8, 16]}

A name in braces is replaced by the arm's value. A word of the command is removed if one of its values is null.
Instead of a command, ``loop: MODULE:FUNCTION`` names a function that trains.
It gets the arm's values as keyword arguments, without nulls.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from harness.scenario.checks import compare_problems
from harness.scenario.errors import Problem, first_error, problems_of
from harness.scenario.load import LOOP, check_scenario, key_of_commands, read_overridden
from harness.scenario.model import Compare, LimitsConfig, Name, Scenario
from harness.scenario.plan import BASELINES_ONLY, DOSE_TIMES, MatrixPoint, compared, points, shuffled
from harness.scenario.yaml import MAX_ARMS, Document, KeyPath
from harness.study.records import COMMAND, ComparisonRecord
from trainer.config import Config
from trainer.errors import InputError
from trainer.json_types import Json, JsonObject
from trainer.user_code import files, named_function

CommandControl = Literal["a-a", "ideal-data", "data-only", "dose"]
Interleave = Literal["slices", "runs"]
Value = str | bool | int | float | None
CALL = Path(__file__).parents[1] / "attach" / "call.py"  # calls the function in a process of its own
_PLACE = re.compile(r"\{(\w+)\}")


class CommandScenario(Config):
    """One scenario file whose arms are the user's programs: a ``command`` or a ``loop`` (function that trains)."""

    name: Name
    question: str
    command: str | None = Field(None, min_length=1)
    """Command of every arm, split into words as a shell does. {key} is replaced by the arm's value of that key."""
    loop: Annotated[str, AfterValidator(named_function)] | None = None
    """Function that trains, instead of a command. It is called with the arm's values as keyword arguments."""
    extends: str | None = None
    base: dict[str, Value] = Field(default_factory=dict)
    """Values that all arms share."""
    arms: Annotated[dict[Name, dict[str, Value] | None], Field(min_length=1)]
    """Named variants with the values that differ. ``command`` or ``loop`` gives an arm its own command or function."""
    matrix: dict[str, Annotated[list[Value], Field(min_length=1)]] = Field(default_factory=dict)
    """Keys and their values. Every arm runs with every combination."""
    controls: list[CommandControl] = Field(default_factory=list)
    """Controls, which run the command again. a-a and dose are added only to baselines."""
    compare: list[Compare] | None = None
    """Pairs of arms to compare. Default: the first arm is the baseline of all others."""
    noise_floor: float | None = Field(None, gt=0, lt=1)
    repeats: int = Field(5, ge=1, le=1000)
    """Number of blocks, each with fresh processes."""
    steps: int = Field(60, ge=1, le=10_000_000)
    """Measured steps of each block."""
    interleave: Interleave = "slices"
    """slices: the commands of a block stay alive and take turns. runs: they run one after another."""
    warmup: int = Field(5, ge=4, le=10_000_000)
    """Unmeasured steps before the first turn."""
    fetch: str | None = None
    """Function that returns a batch; see harness exec --fetch."""
    step_ends: str | None = None
    """Class of the optimizer whose update ends a step."""
    seed: int = 0
    """Seed of the order of arms within blocks."""
    limits: LimitsConfig = LimitsConfig()


@dataclass(frozen=True)
class CommandArm:
    """An arm of a CommandScenario, or one of its controls, with the command to run; :func:`plan_commands` makes it."""

    name: str
    program: tuple[str, ...]
    control: str | None = None
    of: str | None = None
    values: tuple[tuple[str, Json], ...] = ()  # values that differ from base
    folder: str | None = None  # working directory, if not the current one
    path: tuple[str, ...] = ()  # more folders with this state of the user's code
    code: str | None = None  # state of the user's code in these folders
    comparison: str | None = None  # comparison of two states of the code that it belongs to
    call: str | None = None  # function that the program calls, as in source code

    @property
    def text(self) -> str:
        """Text of the call or command for messages."""
        return self.call or shlex.join(self.program)

    @property
    def declared(self) -> JsonObject:
        """Entry in study.json: the arm's values besides those of base, or the command's text if there are none; and the
        label of the user's code, if any.
        """
        entry: JsonObject = {COMMAND: dict(self.values) or self.text}
        return entry if self.code is None else {**entry, "code": self.code}


@dataclass(frozen=True)
class CommandPlan:
    """All runs of a scenario. ``blocks[b]`` lists the names of all arms in the order in which block b starts them."""

    scenario: CommandScenario
    arms: tuple[CommandArm, ...]
    comparisons: tuple[ComparisonRecord, ...]
    blocks: tuple[tuple[str, ...], ...]


def open_scenario(
    path: str | Path, sets: Sequence[str] = (), *, repeats: int | None = None, interleave: str | None = None
) -> Scenario | CommandScenario:
    """Return the CommandScenario (with a command or a loop) or Scenario at ``path``, as ``load_scenario`` does."""
    document = read_overridden(path, sets, repeats=repeats, interleave=interleave)
    return check_scenario(document) if key_of_commands(document) is None else _check_commands(document)


def _check_commands(document: Document) -> CommandScenario:
    data = {key: value for key, value in document.data.items() if value is not None}
    try:
        scenario = CommandScenario.model_validate(data, strict=True)
    except ValidationError as error:
        problems = [problem for _, problem in problems_of(error, CommandScenario)]
        raise first_error(problems, document) or error from error
    if mistake := first_error(_problems(scenario), document):
        raise mistake
    return scenario


def plan_commands(scenario: CommandScenario) -> CommandPlan:
    """Return all runs of ``scenario``: arms at each matrix point with their controls, and the order of each block."""
    combinations = list(points(scenario.matrix))
    plain = [_arm(scenario, name, point) for point in combinations for name in scenario.arms]
    comparisons = compared(list(scenario.arms), scenario.compare, combinations)
    baselines = {pair.baseline for pair in comparisons} or {plain[0].name}
    arms = []
    for arm in plain:
        arms.append(arm)
        for kind in dict.fromkeys(scenario.controls):
            if kind in BASELINES_ONLY and arm.name not in baselines:
                continue
            for control in [f"dose-data-{times}" for times in DOSE_TIMES] if kind == "dose" else [kind]:
                arms.append(replace(arm, name=f"{arm.name}+{control}", control=control, of=arm.name))
    return CommandPlan(
        scenario,
        tuple(arms),
        comparisons,
        tuple(tuple(shuffled(scenario.seed, block, (arm.name for arm in arms))) for block in range(scenario.repeats)),
    )


def describe_commands(plan: CommandPlan) -> str:
    """Return a text with a line ``arm: command`` for each arm and control, and a last line with the number of runs."""
    lines = [f"{arm.name}: {arm.text}" for arm in plan.arms]
    runs = len(plan.arms) * len(plan.blocks)
    return "\n".join([*lines, f"{runs} runs: {len(plan.blocks)} blocks x {len(plan.arms)}"])


def _values(scenario: CommandScenario, name: str, point: MatrixPoint) -> dict[str, Value]:
    return {**scenario.base, **point.values, **(scenario.arms[name] or {})}  # type: ignore[dict-item]


def _arm(scenario: CommandScenario, name: str, point: MatrixPoint) -> CommandArm:
    values = _values(scenario, name, point)
    differing = tuple(sorted({**point.values, **(scenario.arms[name] or {})}.items()))
    kind, template = _runs(scenario, values)
    if kind == LOOP:
        arguments = {key: value for key, value in values.items() if value is not None}
        # -P keeps the folder of that file, with modules of the harness, out of the user's imports.
        program = (sys.executable, "-P", str(CALL), template, json.dumps(arguments))
        call = f"{template}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        return CommandArm(f"{name}{point.suffix}", program, values=differing, call=call)
    parts = []
    for word in shlex.split(template):
        keys = _PLACE.findall(word)
        if any(values.get(key) is None for key in keys):
            continue
        parts.append(_PLACE.sub(lambda match: _word(values[match[1]]), word))
    return CommandArm(f"{name}{point.suffix}", tuple(parts), values=differing)


def _runs(scenario: CommandScenario, values: dict[str, Value]) -> tuple[str, str]:
    """Remove the keys ``command`` and ``loop`` from ``values``, which are an arm's. Return (COMMAND, command) or (LOOP,
    function) from there, else from the scenario; (COMMAND, "") if neither gives one.
    """
    arm_entries = {key: values.pop(key, None) for key in (COMMAND, LOOP)}
    for kind, entry in (*arm_entries.items(), (COMMAND, scenario.command), (LOOP, scenario.loop)):
        if entry is not None:
            return kind, str(entry)
    return COMMAND, ""


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problems(scenario: CommandScenario) -> Iterator[Problem]:
    combinations = list(points(scenario.matrix))
    if len(scenario.arms) * len(combinations) > MAX_ARMS:
        yield Problem(("arms",), f"{len(scenario.arms) * len(combinations)} arms; at most {MAX_ARMS}")
        return
    if scenario.command is not None and scenario.loop is not None:
        yield Problem((LOOP,), "give a command or a loop, not both")
    for name, overrides in scenario.arms.items():
        yield from _arm_problems(scenario, name, overrides or {}, _values(scenario, name, combinations[0]))
    yield from compare_problems(list(scenario.arms), scenario.compare, scenario.matrix)


def _arm_problems(
    scenario: CommandScenario, name: str, own: dict[str, Value], values: dict[str, Value]
) -> Iterator[Problem]:
    kind, template = _runs(scenario, values)
    path: KeyPath = ("arms", name, kind) if kind in own else (kind,)
    for key in sorted(scenario.matrix.keys() & own.keys()):
        yield Problem(("arms", name, key), f"the matrix also sets {key}; remove it from one of them")
    if kind == LOOP:
        try:
            files(LOOP, named_function(template))  # checks that the module exists without importing it
        except (InputError, ValueError) as error:
            yield Problem(path, str(error).removeprefix(f"{LOOP}: "))
        return
    try:
        empty = not shlex.split(template)
    except ValueError as error:
        yield Problem(path, str(error).lower())
        return
    if empty:
        yield Problem(path, "give a command")
    used = set(_PLACE.findall(template))
    for key in sorted(used - values.keys()):
        yield Problem(path, f"{{{key}}}: arm {name} has no such value; values: {', '.join(values) or 'none'}")
    if path == (COMMAND,):
        for key in sorted(values.keys() - used):
            place: KeyPath = ("arms", name, key) if key in own else ("base", key)
            yield Problem(place if key not in scenario.matrix else ("matrix", key), f"add {{{key}}} to the command")
