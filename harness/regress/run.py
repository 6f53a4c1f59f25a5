"""Plan a regression check, and run its comparisons until each is decided or the time is spent."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Literal

from harness.launch.code import EXAMINE_S, examine, find_code, fingerprint, fit_config
from harness.launch.study import Sequential, arm_record, run_study
from harness.machine.environment import checkout_fingerprint
from harness.regress.decision import Limits, StateComparison, WhyUndecided, is_look, nothing
from harness.regress.gate import comparisons
from harness.regress.policy import HOPELESS_BLOCKS, MOST_BLOCKS_PLANNED
from harness.scenario.errors import did_you_mean
from harness.scenario.model import Scenario
from harness.scenario.overrides import flatten, has, lookup, merge
from harness.scenario.plan import CONTROLS, Arm, Plan, Variant, make_plan, variants
from harness.study.records import ArmRecord, ComparisonRecord, OtherDefault, StudyRecord
from harness.study.store import StudyFolder
from trainer.config import BEFORE, TrainerConfig
from trainer.errors import InputError
from trainer.json_types import JsonObject
from trainer.user_code import fingerprint as user_fingerprint

BASE, HEAD = "base", "head"
ALLOWED_CONTROLS = ("data-only", "ideal-data")


@dataclass(frozen=True)
class ComparisonPlan:
    """Plan of a regression check, with three arms per comparison: baseline, its A/A control and candidate."""

    plan: Plan
    names: Mapping[str, str]  # name of the comparison of each arm, by arm


def between_states(scenario: Scenario, source: str, patterns: Sequence[str], control: str | None) -> ComparisonPlan:
    """Plan each selected arm, under ``control``, as ``<arm>@base``, ``<arm>@base+a-a`` and ``<arm>@head``."""
    selected = {arm.name for arm in make_plan(scenario, source, patterns).arms if arm.control is None}
    arms: list[Arm] = []
    names: dict[str, str] = {}
    for variant in (entry for entry in variants(scenario) if entry.name in selected):
        comparison = with_control(variant.name, control)
        three = _three(variant, variant, f"{comparison}@{BASE}", f"{comparison}@{HEAD}", control)
        arms += three
        names |= {arm.name: comparison for arm in three}
    return ComparisonPlan(_plan(scenario, arms), names)


def between_arms(
    scenario: Scenario, source: str, baseline: str, candidate: str, control: str | None = None
) -> ComparisonPlan:
    """Plan ``candidate`` against ``baseline``, both under ``control``. Raise InputError if one is unknown."""
    by_name = {variant.name: variant for variant in variants(scenario)}
    for name in (baseline, candidate):
        if name not in by_name:
            raise unknown_arm(source, name, by_name)
    base, other = by_name[baseline], by_name[candidate]
    three = _three(base, other, with_control(baseline, control), with_control(candidate, control), control)
    comparison = f"{three[2].name} against {three[0].name}"
    return ComparisonPlan(_plan(scenario, three), {arm.name: comparison for arm in three})


def unknown_arm(source: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for an arm ``name`` that the scenario at ``source`` does not have."""
    return InputError(f"{source}: arms: no arm {name!r}{did_you_mean(name, known) or ';'} arms: {', '.join(known)}")


def alone(scenario: Scenario, source: str, arm: str, control: str | None = None) -> ComparisonPlan:
    """Plan ``arm`` under ``control`` and its A/A control, for a baseline, in as many blocks as the scenario repeats."""
    planned = between_arms(scenario, source, arm, arm, control)
    pair = planned.plan.arms[:2]
    names = {member.name for member in pair}
    blocks = tuple(tuple(name for name in dict.fromkeys(block) if name in names) for block in planned.plan.blocks)
    plan = Plan(scenario, pair, (), blocks[: scenario.repeats])
    return ComparisonPlan(plan, {member.name: pair[0].name for member in pair})


def records_of(asked: ComparisonPlan) -> dict[str, ArmRecord]:
    """Return the records of all arms for study.json, by arm, including the name of their comparison."""
    return {arm.name: replace(arm_record(arm), contest=asked.names[arm.name]) for arm in asked.plan.arms}


def with_control(name: str, control: str | None) -> str:
    """Return ``<arm>+<control>``, or ``name`` for None. Raise InputError for one not in :data:`ALLOWED_CONTROLS`."""
    if control is not None and control not in ALLOWED_CONTROLS:
        raise InputError(f"control {control!r}: allowed: {', '.join(ALLOWED_CONTROLS)}")
    return name if control is None else f"{name}+{control}"


def _three(baseline: Variant, candidate: Variant, ours: str, theirs: str, control: str | None) -> list[Arm]:
    overrides = {} if control is None else CONTROLS[control]  # type: ignore[index]  # checked by with_control
    arms = []
    for variant, name, kind in ((baseline, ours, None), (baseline, f"{ours}+a-a", "a-a"), (candidate, theirs, None)):
        config = TrainerConfig.model_validate(merge(variant.nested, overrides), strict=True)
        declared = flatten(merge(variant.declared, overrides))
        arms.append(Arm(name, kind, ours if kind else None, declared, config))
    return arms


def _plan(scenario: Scenario, arms: Sequence[Arm]) -> Plan:
    """Return the plan of ``arms`` (threes): shuffled comparisons; six blocks have the six orders of a three once."""
    order = []
    threes = [arms[start : start + 3] for start in range(0, len(arms), 3)]
    for block in range(MOST_BLOCKS_PLANNED):
        every_order, position = divmod(block, 6)
        sides = []
        for number, three in enumerate(threes):
            orders = list(permutations(arm.name for arm in three))
            random.Random(f"{scenario.seed}/{number}/{every_order}").shuffle(orders)
            sides.append(orders[position])
        random.Random(f"{scenario.seed}/{block}").shuffle(sides)
        order.append(tuple(name for three in sides for name in three))
    comparisons = tuple(ComparisonRecord(three[0].name, three[2].name) for three in threes)
    return Plan(scenario, tuple(arms), comparisons, tuple(order))


@dataclass(frozen=True)
class RegressionResult:
    """Result of a regression check: the study's folder and status, and its comparisons with their decisions."""

    folder: Path
    status: str  # status of the study: done, failed, interrupted
    comparisons: list[StateComparison]
    spent_s: float  # seconds of the budget used at the end of the last block
    cut: str | None = None  # run that was ended within a block when the budget was spent


class UntilDecided:
    """Rule that ends a check, called after each block. True: every comparison is decided, the next block would not fit
    into the budget, or after :data:`HOPELESS_BLOCKS` blocks no comparison has one that both sides finished.
    """

    def __init__(self, limits: Limits, budget_s: float) -> None:
        self._limits, self._budget_s = limits, budget_s
        self._begun_s = time.monotonic()
        self.spent_s = 0.0

    def __call__(self, folder: StudyFolder, record: StudyRecord, blocks: int) -> bool:
        spent_s = time.monotonic() - self._begun_s
        # The first block's time includes the preparation of the data, so it does not predict that of the next block.
        block_s, self.spent_s = spent_s - self.spent_s, spent_s
        if spent_s + (block_s if blocks > 1 else 0.0) > self._budget_s:
            return True
        if blocks == HOPELESS_BLOCKS:  # A side that never finished will fail again.
            results = comparisons(record, list(folder.runs()), self._limits)
            return all(comparison.missing is not None for comparison in results)
        if not is_look(blocks):
            return False
        results = comparisons(record, list(folder.runs()), self._limits)
        return all(result.settled for result in results if result.missing is None)


def run_comparisons(
    asked: ComparisonPlan, out: Path, command: Sequence[str], source: str, limits: Limits, budget_s: float,
    arms: Mapping[str, ArmRecord] | None = None,
) -> RegressionResult:  # fmt: skip
    """Run ``asked`` as a study under ``out`` until every comparison is decided, or ``budget_s`` seconds are spent.

    ``arms``: records by arm of :func:`with_codes`, for arms that run other code. A decision is tried at the looks
    (:func:`is_look`) and at the end. A block that still runs when the budget is spent is dropped.
    """
    end_ns = time.monotonic_ns() + round(budget_s * 1e9)
    arms = records_of(asked) if arms is None else arms
    states = code_fingerprints(arms)
    enough = UntilDecided(limits, budget_s)
    outcome = run_study(asked.plan, out, command, source, Sequential(enough, arms, end_ns))
    folder = StudyFolder(outcome.folder)
    decided = comparisons(folder.read_study(), list(folder.runs()), limits)
    decided = unless_changed(decided, states, code_fingerprints(arms), limits)
    return RegressionResult(outcome.folder, outcome.status, decided, enough.spent_s, outcome.cut)


def with_codes(
    asked: ComparisonPlan, base: str, head: str, repository: Path, timeout_s: float = EXAMINE_S
) -> tuple[ComparisonPlan, dict[str, ArmRecord]]:
    """Fit the arms to the harness's code at ``base`` and ``head``. Raise InputError if a side cannot run them."""
    codes = {BASE: find_code(base, repository), HEAD: find_code(head, repository)}
    if codes[BASE].folder == codes[HEAD].folder:
        raise InputError(f"--base {base}, --head {head}: both are {codes[BASE].folder}; give two states")
    configs = [arm.config.model_dump(mode="json") for arm in asked.plan.arms]
    defaults = TrainerConfig().model_dump(mode="json")
    sides = [side_of(arm.name) for arm in asked.plan.arms]
    limit_s = min(timeout_s, EXAMINE_S)
    examined = {side: examine(code, configs, limit_s) for side, code in codes.items()}
    # A default that differs changes no run, because both states run with the same value for every key.
    base_values, head_values = (flatten(examined[side].defaults) for side in (BASE, HEAD))
    other_defaults = tuple(
        OtherDefault(key, base_values[key], head_values[key])
        for key in sorted(set(base_values) & set(head_values))
        if base_values[key] != head_values[key]
    )
    other_defaults += _before(asked.plan.arms, examined[BASE].defaults, examined[HEAD].defaults)
    declared, records = [], {}
    for index, (arm, side) in enumerate(zip(asked.plan.arms, sides, strict=True)):
        examination = examined[side]
        config = fit_config(codes[side], configs[index], defaults, examination.errors[index])
        declared.append(replace(arm, declared={**arm.declared, "code": codes[side].label}))
        records[arm.name] = ArmRecord(
            arm.name,
            arm.control,
            arm.of,
            declared[-1].declared,
            config,
            contest=asked.names[arm.name],
            code=codes[side],
            environment=examination.environment,
            other_defaults=other_defaults,
        )
    return replace(asked, plan=replace(asked.plan, arms=tuple(declared))), records


def _before(arms: Sequence[Arm], base: JsonObject, head: JsonObject) -> tuple[OtherDefault, ...]:
    """Return the keys of ``BEFORE`` that exactly one state lacks, if an arm sets another value than that."""
    differing = []
    for key, former in BEFORE.items():
        lacking = [side for side, defaults in ((BASE, base), (HEAD, head)) if not has(defaults, key)]
        values = {str(lookup(arm.config.model_dump(mode="json"), key)) for arm in arms} - {str(former)}
        if len(lacking) == 1 and values:
            side: Literal["base", "head"] = "base" if lacking[0] == BASE else "head"
            differing.append(OtherDefault(key, former, None, side, tuple(sorted(values))))
    return tuple(differing)


def side_of(arm: str) -> str:
    """Return the state that the arm named ``arm`` runs: "base" (also for its A/A control) or "head"."""
    return BASE if arm.removesuffix("+a-a").endswith(f"@{BASE}") else HEAD


def unless_changed(
    decided: list[StateComparison], before: Mapping[str, object], after: Mapping[str, object], limits: Limits
) -> list[StateComparison]:
    """Return ``decided``; without decisions if the code's fingerprints changed during the check."""
    changed = sorted(path for path in before if after[path] != before[path])
    if not changed:
        return decided
    missing = WhyUndecided("code changed", tuple(changed))
    return [nothing(c.name, c.baseline, c.candidate, limits.step, missing, c.blocks) for c in decided]


def code_fingerprints(arms: Mapping[str, ArmRecord]) -> dict[str, set[str]]:
    """Return fingerprints of all code that ``arms`` run, by folder; they differ if the code changed between calls."""
    codes = [(arm.code, arm.config) for arm in arms.values() if arm.code is not None]
    fingerprints = {folder: {fingerprint(Path(folder))} for folder in {code.folder for code, _ in codes}}
    functions = {
        ((code.directory, *code.path), function)
        for code, config in codes
        if code.directory is not None
        for function in TrainerConfig.model_validate(config).user_functions
    }
    for folder in {places[0] for places, _ in functions}:  # An A/A control has the code of its arm.
        fingerprints.setdefault(folder, set()).add(checkout_fingerprint(Path(folder)))
    for places, (key, name) in functions:
        try:
            fingerprints[places[0]].add(f"{name} {user_fingerprint(key, name, places)}")
        except InputError:  # The function was removed.
            fingerprints[places[0]].add(name)
    return fingerprints
