"""Loads a sweep file, merges the files it extends and the options, and checks the result: one line per mistake."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from harness.scenario.errors import Problem, did_you_mean, first_error, problems_of
from harness.scenario.load import COMMAND_LINE, SCENARIOS, SWEEPS, find_file, load_scenario, option_layer, read_merged
from harness.scenario.model import Scenario
from harness.scenario.overrides import has, merge
from harness.scenario.plan import make_plan
from harness.scenario.yaml import Document, Mark, parse_document
from harness.sweep.model import SweepBudget, SweepConfig
from harness.sweep.projection import ModelSize, MupStrategy
from harness.sweep.strategies import TAGGED
from trainer.config import TrainerConfig
from trainer.errors import InputError, one_line
from trainer.json_types import Json, JsonObject, section
from trainer.model import resolve_shape

DEFAULT_ARM = "trial"
STEPS = "must be a number of steps from 1 to 10,000,000, compute-optimal, or {tokens: N}"
MAX_TRIAL_STEPS = 1_000_000_000  # the most that optimizer.schedule_steps allows
# Keys that the search sets in each trial, and the key of the sweep that controls each.
SET_BY_SWEEP = {
    "optimizer.learning_rate": "learning_rate",
    "optimizer.schedule_steps": "steps",
    "steps": "steps",
    "seed": "seeds",
}
# Keys of the sweep that replace one of the base, which must not be set too.
ALSO_SET = {
    "schedule": "optimizer.schedule",
    "final_fraction": "optimizer.final_fraction",
    "weight_decay": "optimizer.weight_decay",
    "warmup_fraction": "optimizer.lr_warmup_steps",
    "warmup_steps": "optimizer.lr_warmup_steps",
}


class LoadedSweep(NamedTuple):
    """A checked sweep file: its settings, the trained arm's name, and the configuration that all trials share."""

    settings: SweepConfig
    arm: str
    config: TrainerConfig
    notes: tuple[str, ...] = ()  # lines about parts of its scenario that do not count here


def load_sweep(path: str | Path, sets: Sequence[str] = ()) -> LoadedSweep:
    """Read and check a sweep: a file or shipped name, with ``key=value`` texts. Raises InputError with its place."""
    file = find_file(path, SWEEPS)
    document = read_merged(file, "a sweep", "name, learning_rate, strategy and steps")
    for text in sets:
        apply_sweep_set(document, text)
    settings = check_settings(document)
    if settings.scenario is None and settings.arm is not None:
        raise InputError(f"{document.nearest(('arm',))}: arm: goes with scenario; give that too")
    base = _Base() if settings.scenario is None else _scenario_arm(settings.scenario, settings.arm, document, file)
    config = _config_of(settings, base, document)
    _check_mup(settings, config, document)
    return LoadedSweep(base.priced(settings), base.arm, config, base.notes(settings))


def apply_sweep_set(document: Document, text: str, allowed: Sequence[str] | None = None) -> None:
    """Merge ``key=value`` over ``document``; InputError if wrong. ``allowed``: top-level keys; None: all."""
    label = one_line(f"--set {text}")
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise InputError(f"{label}: give key=value, as in --set strategy=greedy")
    first = key.split(".")[0]
    if allowed is not None and first not in allowed:
        raise InputError(f"{label}: a resumed sweep keeps its settings; allowed here: keys of {', '.join(allowed)}")
    if first in ("extends", "scenario", "arm"):
        raise InputError(f"{label}: only the file can set {first}; --set takes other keys of a sweep, or of its base")
    if first not in SweepConfig.model_fields:
        key = f"base.{key}"
    layer = option_layer(key, parse_document(value, label, numbered=False).data, label)
    document.data = {**document.data, **layer.data} if key == "strategy" else merge(document.data, layer.data)
    document.marks |= layer.marks


def settings_with(settings: JsonObject, sets: Sequence[str]) -> SweepConfig:
    """Return recorded settings with new budgets or limits from ``sets``. Raises InputError for other keys."""
    kept = {key: value for key, value in settings.items() if value is not None}
    document = Document(kept, {(): Mark(0, 0, "sweep.json")})
    for text in sets:
        apply_sweep_set(document, text, ("budget", "limits"))
    return check_settings(document)


def check_settings(document: Document) -> SweepConfig:
    """Return the settings of a document. Raises InputError for the first mistake, with file and line."""
    data = {key: value for key, value in document.data.items() if value is not None}
    _check_one_warmup(data, document)
    try:
        settings = SweepConfig.model_validate(data, strict=True)
    except ValidationError as error:
        raise _first(error, SweepConfig, document, ()) from error
    clashes = {key: f"the search sets it; use the sweep's {setting}" for key, setting in SET_BY_SWEEP.items()}
    for key, overridden in ALSO_SET.items():
        if getattr(settings, key) is not None:
            clashes[overridden] = f"the sweep's {key} also sets it; give one of them"
    if settings.batch_tokens is not None:
        clashes["optimizer.accumulation"] = "batch_tokens sets it; give one of them"
    for key, why in clashes.items():
        if has(settings.base, key):
            raise InputError(f"{document.nearest(('base', *key.split('.')))}: base.{key}: {why}")
    return settings


def _check_one_warmup(data: Mapping[str, object], document: Document) -> None:
    """Raise InputError if both warm-up keys are set. The error names the key that ``--set KEY=null`` can remove."""
    if "warmup_steps" not in data or "warmup_fraction" not in data:
        return
    marks = {key: document.nearest((key,)) for key in ("warmup_steps", "warmup_fraction")}
    by_option = [key for key, mark in marks.items() if mark is not None and mark.order == COMMAND_LINE]
    if len(by_option) == 1:
        (option_key,), (file_key,) = by_option, [key for key in marks if key not in by_option]
        raise InputError(
            f"{marks[option_key]}: {option_key}: {marks[file_key]}: {file_key} also sets the warm-up; "
            f"add --set {file_key}=null"
        )
    raise InputError(
        f"{marks['warmup_steps']}: warmup_steps: warmup_fraction ({marks['warmup_fraction']}) also sets the warm-up; "
        "give one of them (null removes one)"
    )


class _Base(NamedTuple):
    """Configuration of the trials before the sweep's own keys. ``scenario``: the one that has it, if any."""

    arm: str = DEFAULT_ARM
    config: dict[str, Json] = {}  # noqa: RUF012 - never changed
    scenario: Scenario | None = None

    def priced(self, settings: SweepConfig) -> SweepConfig:
        """Return ``settings``; if they have no price, with that of the scenario."""
        if self.scenario is None or settings.price_usd_per_hour is not None:
            return settings
        return settings.model_copy(update={"price_usd_per_hour": self.scenario.price_usd_per_hour})

    def notes(self, settings: SweepConfig) -> tuple[str, ...]:
        """Return a line for each part of the scenario that has no effect on the sweep: its budget and its upload."""
        lines = []
        if self.scenario is not None and self.scenario.budget is not None and settings.budget == SweepBudget():
            lines.append(f"the budget of {settings.scenario} does not apply to this sweep (set the key budget)")
        if self.scenario is not None and self.scenario.upload is not None:
            lines.append(f"the upload of {settings.scenario} does not apply to this sweep (use harness upload)")
        return tuple(lines)


def _config_of(settings: SweepConfig, base: _Base, document: Document) -> TrainerConfig:
    """Return the configuration that all trials share. Raises InputError with the place of a wrong key."""
    over = dict(settings.base)
    # The length of a schedule is not known yet: each trial has its own.
    names = ("schedule", "final_fraction", "weight_decay")
    own: JsonObject = {name: value for name in names if (value := getattr(settings, name)) is not None}
    over["optimizer"] = {**merge(section(over, "optimizer"), own), "schedule_steps": MAX_TRIAL_STEPS}
    try:
        # Only the values of this file are checked strictly; those of the arm were checked before.
        return TrainerConfig.model_validate(merge(base.config, over), strict=not base.config)
    except ValidationError as error:
        raise _first(error, TrainerConfig, document, ("base",)) from error


def _check_mup(settings: SweepConfig, config: TrainerConfig, document: Document) -> None:
    """Raise InputError if the base of strategy mup is wider than the sweep's model: mup transfers to wider ones."""
    strategy, model = settings.strategy, config.model
    if not isinstance(strategy, MupStrategy) or model.is_of_files or model.factory is not None:
        return  # The strategy itself refuses models without a preset.
    base, width = strategy.widths[0], resolve_shape(model, 0, config.data.sequence_length).width
    if width < base:
        raise InputError(
            f"{document.nearest(('strategy', 'widths'))}: strategy.widths[0]: the base of mup has {base} channels, "
            f"more than the sweep's model, which the rate is for ({width}); allowed: at most {width}"
        )


def _scenario_arm(scenario: str, arm: str | None, document: Document, file: Path) -> _Base:
    mark = document.nearest(("scenario",))
    relative = Path(os.path.normpath(file.parent / scenario))
    place = relative if relative.exists() else find_file(scenario, SCENARIOS)
    try:
        loaded = load_scenario(place)
        plan = make_plan(loaded, str(place), [] if arm is None else [arm])
    except InputError as error:
        raise InputError(f"{mark}: scenario {scenario}: {str(error).replace('--arm', 'arm', 1)}") from error
    arms = [planned for planned in plan.arms if planned.control is None]
    if len(arms) != 1:
        names = ", ".join(planned.name for planned in arms)
        raise InputError(f"{mark}: arm: one arm is trained, and {scenario} has {len(arms)}: {names}")
    return _Base(arms[0].name, arms[0].config.model_dump(mode="json"), loaded)


def _first(error: ValidationError, model: type[BaseModel], document: Document, above: tuple[str, ...]) -> InputError:
    """Return the InputError for the first of pydantic's errors. ``above``: keys of the document above ``model``."""
    problems = []
    for kind, problem in problems_of(error, model):
        path = tuple(part for place, part in enumerate(problem.path) if not (place == 1 and _is_tag(problem.path)))
        message = problem.message
        if path[:1] == ("steps",) and not above and kind != "missing":  # pydantic reports a line for each allowed form.
            path, message = path[:1], STEPS
        elif kind == "extra_forbidden" and _is_tag(problem.path):
            # key of a list in a strategy, for example sizes
            strategy, below = str(problem.path[1]), str(problem.path[2]) if len(problem.path) > 3 else None
            allowed = list((ModelSize if below == "sizes" else TAGGED[strategy]).model_fields)
            guess = did_you_mean(str(path[-1]), allowed) or ";"
            message = f"unknown key of {below or strategy}{guess} allowed: {', '.join(allowed)}"
        problems.append(Problem((*above, *path), message))
    first = first_error(problems, document)
    assert first is not None
    return first


def _is_tag(path: tuple[str | int, ...]) -> bool:
    return len(path) > 1 and path[0] == "strategy" and path[1] in TAGGED
