"""Plans every run of a scenario: arms at every matrix point with their controls, comparisons, order of each block."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Literal

from harness.machine.check import count
from harness.machine.environment import has_nvidia_driver
from harness.scenario.errors import did_you_mean
from harness.scenario.model import Compare, Control, ProbesConfig, Scenario
from harness.scenario.overrides import DOSES, Dosed, Nested, expand, flatten, lookup, lookup_number, merge
from harness.scenario.yaml import MAX_ARMS
from harness.study.contract import ALONE, BARE, LEDGER, PROFILED
from harness.study.records import ComparisonRecord
from trainer.config import TrainerConfig
from trainer.errors import InputError, one_line, visible
from trainer.json_types import Json, JsonObject


@dataclass(frozen=True)
class MatrixPoint:
    """One combination of matrix values. ``suffix`` (``@batch_size=8``) follows an arm's name."""

    suffix: str
    values: Nested


@dataclass(frozen=True)
class Variant:
    """One arm at one matrix point. ``declared``: the point's and the arm's own keys; ``nested``: the whole."""

    name: str
    arm: str
    point: MatrixPoint
    declared: Nested
    nested: Nested


def count_arms(scenario: Scenario) -> int:
    """Return the number of arms times matrix points, without controls. Nothing is built."""
    return len(scenario.arms) * math.prod(len(values) for values in scenario.matrix.values())


def points(matrix: Mapping[str, Sequence[Json]]) -> Iterator[MatrixPoint]:
    """Yield every combination of the matrix values, the last key varying fastest; one empty point without a matrix."""
    last_parts = [key.rpartition(".")[2] for key in matrix]
    labels = [key if last_parts.count(part) > 1 else part for key, part in zip(matrix, last_parts, strict=True)]
    for values in itertools.product(*matrix.values()):
        named = [f"{label}={value_name(value)}" for label, value in zip(labels, values, strict=True)]
        suffix = f"@{','.join(named)}" if named else ""
        yield MatrixPoint(suffix, expand(dict(zip(matrix, values, strict=True))))


def variants(scenario: Scenario) -> Iterator[Variant]:
    """Yield every arm at every matrix point: defaults, then base, the point, and the arm's own overrides."""
    # The base starts from the defaults, so that `data.corpus.documents: 40` means the first 40 of the default corpus.
    base = merge(TrainerConfig().model_dump(), expand(scenario.base))
    combinations = list(points(scenario.matrix))
    for arm, overrides in scenario.arms.items():
        arm_values = expand(overrides or {})
        for point in combinations:
            nested = merge(merge(base, point.values), arm_values)
            yield Variant(f"{arm}{point.suffix}", arm, point, merge(point.values, arm_values), nested)


def value_name(value: Json) -> str:
    """Format a matrix value as part of a folder name: at most 40 safe characters, or longer for a mapping."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return (
            "-".join(f"{key.rpartition('.')[2]}-{value_name(leaf)}" for key, leaf in flatten(value).items()) or "empty"
        )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-.")[-40:] or "empty"


# Overrides of each control. ideal-data: no data cost. data-only: no compute. a-a: no change. The control "dose" is not
# listed: it is several arms that repeat one kind of work (a key of DOSES), each by one of DOSE_TIMES.
CONTROLS: dict[Control, Nested] = {
    "a-a": {},
    "ideal-data": {"data": {"replay": True, "workers": 0, "inject": None}},
    "data-only": {"compute": {"work": "none", "inject": None}},
}
BASELINES_ONLY: set[Control] = {"a-a", "dose"}
DOSE_TIMES = (1, 2, 4)
MAX_EXTRA = 64  # maximum of the keys of DOSES


@dataclass(frozen=True)
class Arm:
    """One configuration to run, an arm or a control. ``declared``: the dotted keys set on top of base."""

    name: str
    control: str | None
    of: str | None  # arm that this control belongs to
    declared: JsonObject
    config: TrainerConfig


@dataclass(frozen=True)
class Plan:
    """All runs of a scenario. ``blocks[b]`` lists the names of all arms in the order in which block b runs them."""

    scenario: Scenario
    arms: tuple[Arm, ...]
    comparisons: tuple[ComparisonRecord, ...]
    blocks: tuple[tuple[str, ...], ...]
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # arms, with the modules that they lack here


def make_plan(scenario: Scenario, source: str, arms: Sequence[str] = ()) -> Plan:
    """Return all runs of ``scenario``, which load_scenario has checked. ``source``: path of its file, for errors.

    ``arms``: glob patterns for arms, with or without matrix point; empty: all arms. Selected arms keep their controls.
    A comparison stays if both of its arms are selected. An arm that needs a Python module that is not installed is left
    out. Raises InputError for a pattern that matches no arm, if no arm is left, or for more than MAX_ARMS.
    """
    plain = list(variants(scenario))
    comparisons = compared(list(scenario.arms), scenario.compare, points(scenario.matrix))
    selected = _selected(plain, arms)
    left_out = _left_out(scenario, selected)
    kept = [variant for variant in selected if variant.name not in left_out]
    if not kept:
        name, modules = next(iter(left_out.items()))
        raise InputError(f"{source}: requires: every arm needs a missing module; {name} needs {', '.join(modules)}")
    baselines = {pair.baseline for pair in comparisons} or {
        variant.name for variant in plain if variant.arm == plain[0].arm
    }
    baselines |= {claim.baseline for claim in scenario.claims if claim.baseline is not None}
    everything = list(_with_controls(scenario, source, kept, baselines))
    if len(everything) > MAX_ARMS:
        raise InputError(
            f"{source}: arms: {len(everything)} arms ({len(kept)} without their controls); at most {MAX_ARMS}"
        )
    names = {variant.name for variant in kept}
    return Plan(
        scenario,
        tuple(everything),
        tuple(pair for pair in comparisons if pair.baseline in names and pair.candidate in names),
        tuple(_order(scenario.seed, block, everything) for block in range(scenario.repeats)),
        left_out,
    )


def _left_out(scenario: Scenario, selected: Sequence[Variant]) -> dict[str, tuple[str, ...]]:
    """Return the selected arms that need missing Python modules, by name, with these modules. Imports none of them."""
    lacking = {
        arm: tuple(module for module in modules if find_spec(module) is None)
        for arm, modules in scenario.requires.items()
    }
    return {variant.name: lacking[variant.arm] for variant in selected if lacking.get(variant.arm)}


def compared(
    arms: Sequence[str], compare: Sequence[Compare] | None, combinations: Iterable[MatrixPoint]
) -> tuple[ComparisonRecord, ...]:
    """Return the pairs to compare at each matrix point. ``compare``: None for the first arm against all others."""
    suffixes = [point.suffix for point in combinations]
    pairs = [(arms[0], arm) for arm in arms[1:]]
    if compare is not None:
        pairs = [(pair.baseline, pair.candidate) for pair in compare]
    records = [
        ComparisonRecord(f"{baseline}{suffix}", f"{candidate}{suffix}")
        for baseline, candidate in pairs
        for suffix in (suffixes if baseline in arms else [""])
    ]
    return tuple(dict.fromkeys(records))


def shuffled(seed: int, block: int, names: Iterable[str]) -> list[str]:
    """Return ``names`` of arms in the random order in which ``block`` starts them."""
    order = list(names)
    random.Random(f"{seed}/{block}").shuffle(order)
    return order


def _selected(plain: Sequence[Variant], patterns: Sequence[str]) -> list[Variant]:
    def chosen(one: Variant, pattern: str) -> bool:
        return fnmatchcase(one.name, pattern) or fnmatchcase(one.arm, pattern)

    for pattern in patterns:
        if not any(chosen(variant, pattern) for variant in plain):
            names = dict.fromkeys(name for variant in plain for name in (variant.arm, variant.name))
            guess = did_you_mean(pattern, names) or ";"
            shown = list(dict.fromkeys(variant.arm for variant in plain))
            raise InputError(f"--arm {pattern}: no arm matches{guess} arms: {', '.join(shown)}")
    return [variant for variant in plain if not patterns or any(chosen(variant, pattern) for pattern in patterns)]


def _with_controls(scenario: Scenario, source: str, plain: Sequence[Variant], baselines: set[str]) -> Iterator[Arm]:
    for variant in plain:
        arm = _arm(variant.name, None, variant, {})
        yield arm
        for control in dict.fromkeys(scenario.controls):
            if control in BASELINES_ONLY and variant.name not in baselines:
                continue
            overrides = (
                _doses(scenario, source, variant, arm.config) if control == "dose" else [(control, CONTROLS[control])]
            )
            for kind, override in overrides:
                yield _arm(f"{variant.name}+{kind}", kind, variant, override)
        first = next((candidate.name for candidate in plain if candidate.name in baselines), plain[0].name)
        for kind in _probe_runs(scenario.probes, calibrated=variant.name == first):
            yield _arm(f"{variant.name}+{kind}", kind, variant, {})


def _probe_runs(probes: ProbesConfig, *, calibrated: bool) -> Iterator[str]:
    """Yield the names of the extra runs of probes. ``calibrated``: True for the arm that measures their cost."""
    if calibrated and probes.calibrate:
        sampled = {"host": probes.host, "nvml": has_nvidia_driver() if probes.nvml == "auto" else probes.nvml}
        disturbing = {"torch_profiler": probes.profiled_run, "py_spy": probes.py_spy}
        yield from (BARE, LEDGER)
        yield from (f"{ALONE}{name}" for name, enabled in (sampled | disturbing).items() if enabled)
    if probes.profiled_run or probes.py_spy:
        yield PROFILED


def _doses(scenario: Scenario, source: str, one: Variant, config: TrainerConfig) -> Iterator[tuple[str, Nested]]:
    """Yield (name, overrides) of each dose, a control that repeats work of the arm ``one``: ``dose-tokenize-2`` repeats
    the arm's tokenization 2 more times. Raises InputError if a key would exceed MAX_EXTRA.
    """
    for kind, key in dict.fromkeys(_dosed(config, dose) for dose in scenario.dose):
        work = 1 + int(lookup_number(one.nested, key, 0))  # an arm may repeat its own work
        for times in DOSE_TIMES if _has_work(config, kind) else ():
            extra = work * (1 + times) - 1
            if extra > MAX_EXTRA:
                raise InputError(
                    f"{source}: controls: dose: {key} of {one.name} would be {extra} ({times} times its own "
                    f"{work} more); allowed: at most {MAX_EXTRA}"
                )
            yield f"dose-{kind}-{times}", expand({key: extra})


def _dosed(config: TrainerConfig, asked: Dosed) -> tuple[Dosed | Literal["data"], str]:
    """Return (kind of work that a dose repeats, configuration key that sets the repetitions). ``asked``: the kind in
    the scenario. If the arm has a data source of the user, reading and tokenizing cannot be repeated alone, so the kind
    is "data", the whole batch.
    """
    is_batch = config.data.source is not None and asked != "device"
    return ("data", DOSES["read"]) if is_batch else (asked, DOSES[asked])


def _has_work(config: TrainerConfig, what: Dosed | Literal["data"]) -> bool:
    """Return True if the arm does this kind of work: real work, or a cost of that stage declared by ``data.inject``."""
    if what == "device":
        return config.compute.work != "none"
    data = config.data
    if what == "data":
        return not data.replay
    if data.inject is not None and (data.inject.tokenize_ms if what == "tokenize" else data.inject.read_ms):
        return True
    return not data.replay and (what == "read" or data.path.startswith("text-"))


def _arm(name: str, control: str | None, one: Variant, over: Nested) -> Arm:
    config = TrainerConfig.model_validate(merge(one.nested, over), strict=True)
    return Arm(name, control, one.name if control else None, flatten(merge(one.declared, over)), config)


def _order(seed: int, block: int, arms: Sequence[Arm]) -> tuple[str, ...]:
    names = shuffled(seed, block, (arm.name for arm in arms if arm.control != PROFILED))
    # An arm is profiled once, at the end of block 0, so that no measured run is next to a profiler.
    return (*names, *(arm.name for arm in arms if arm.control == PROFILED and block == 0))


def describe(plan: Plan) -> str:
    """Return a table of all runs in order, a line of counts, and a line for each arm that is left out."""
    keys = list(dict.fromkeys(key for arm in plan.arms for key in arm.declared))
    cells = {}
    for arm in plan.arms:
        config = arm.config.model_dump()
        values = [_cell(arm.declared.get(key, lookup(config, key))) for key in keys]
        cells[arm.name] = [arm.name, arm.control or "-", *values]
    rows = [["run", "block", "arm", "control", *keys]]
    for block, names in enumerate(plan.blocks):
        rows += [[str(len(rows) + place), str(block), *cells[name]] for place, name in enumerate(names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    profiled = sum(arm.control == PROFILED for arm in plan.arms)
    plain = sum(arm.control is None for arm in plan.arms)
    controls = len(plan.arms) - plain - profiled
    counts = (
        f"{len(rows) - 1} runs: {len(plan.blocks)} blocks x {plain + controls} ({count(plain, 'arm')}, "
        f"{count(controls, 'control')}){f' and {profiled} profiled' if profiled else ''}; "
        f"{count(len(plan.comparisons), 'comparison')}"
    )
    left_out = [
        f"{name} is left out: it needs {', '.join(modules)}, which is not installed"
        for name, modules in plan.left_out.items()
    ]
    return "\n".join([*lines, counts, *left_out])


def plan_json(plan: Plan) -> JsonObject:
    """Return the plan as JSON: arms with declared keys and configuration, each block's order, and the comparisons."""
    arms: JsonObject = {
        arm.name: {
            "control": arm.control,
            "of": arm.of,
            "declared": arm.declared,
            "config": arm.config.model_dump(mode="json"),
        }
        for arm in plan.arms
    }
    pairs: list[Json] = [{"baseline": pair.baseline, "candidate": pair.candidate} for pair in plan.comparisons]
    blocks: list[Json] = [list(names) for names in plan.blocks]
    left_out: JsonObject = {name: list(modules) for name, modules in plan.left_out.items()}
    return {
        **{"schema": 1, "scenario": plan.scenario.name, "arms": arms, "blocks": blocks, "comparisons": pairs},
        **({"left_out": left_out} if left_out else {}),
    }


def _cell(value: Json) -> str:
    if value is None or isinstance(value, bool):
        return "-" if value is None else str(value).lower()
    return visible(one_line(str(value)))
