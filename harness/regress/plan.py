"""Plans a regression check: baseline, its A/A control and candidate, for as many blocks as a budget may last."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from harness.launch.study import arm_record
from harness.regress.policy import MOST_BLOCKS_PLANNED
from harness.scenario.errors import did_you_mean
from harness.scenario.matrix import Variant, variants
from harness.scenario.model import Scenario
from harness.scenario.overrides import flatten, merge
from harness.scenario.plan import CONTROLS, Arm, Plan, make_plan
from harness.study.records import ArmRecord, ComparisonRecord
from trainer.config import TrainerConfig
from trainer.errors import InputError

BASE, HEAD = "base", "head"
ALLOWED_CONTROLS = ("data-only", "ideal-data")


@dataclass(frozen=True)
class ComparisonPlan:
    """``plan`` holds three arms a comparison; ``names``: the comparison that each arm belongs to."""

    plan: Plan
    names: Mapping[str, str]


def between_states(scenario: Scenario, source: str, patterns: Sequence[str], control: str | None) -> ComparisonPlan:
    """Each arm that ``patterns`` select (all without one), as it is at base and at head.

    The arms are called ``<arm>@base``, ``<arm>@base+a-a`` and ``<arm>@head``. Raises InputError as make_plan does.
    """
    kept = {arm.name for arm in make_plan(scenario, source, patterns).arms if arm.control is None}
    arms: list[Arm] = []
    names: dict[str, str] = {}
    for one in (one for one in variants(scenario) if one.name in kept):
        comparison = with_control(one.name, control)
        three = _three(one, one, f"{comparison}@{BASE}", f"{comparison}@{HEAD}", control)
        arms += three
        names |= {arm.name: comparison for arm in three}
    return ComparisonPlan(_plan(scenario, arms), names)


def between_arms(
    scenario: Scenario, source: str, baseline: str, candidate: str, control: str | None = None
) -> ComparisonPlan:
    """``candidate`` against ``baseline``, both under ``control``."""
    known = {one.name: one for one in variants(scenario)}
    for name in (baseline, candidate):
        if name not in known:
            raise unknown_arm(source, name, known)
    ours, theirs = known[baseline], known[candidate]
    three = _three(ours, theirs, with_control(baseline, control), with_control(candidate, control), control)
    comparison = f"{three[2].name} against {three[0].name}"
    return ComparisonPlan(_plan(scenario, three), {arm.name: comparison for arm in three})


def unknown_arm(source: str, name: str, known: Iterable[str]) -> InputError:
    """What to raise where the scenario at ``source`` has no arm ``name``."""
    return InputError(f"{source}: arms: no arm {name!r}{did_you_mean(name, known) or ';'} arms: {', '.join(known)}")


def alone(scenario: Scenario, source: str, arm: str, control: str | None = None) -> ComparisonPlan:
    """``arm`` and its A/A control for the scenario's own number of blocks: to make or to check a baseline."""
    asked = between_arms(scenario, source, arm, arm, control)
    two = asked.plan.arms[:2]
    names = {one.name for one in two}
    blocks = tuple(tuple(name for name in dict.fromkeys(block) if name in names) for block in asked.plan.blocks)
    plan = Plan(scenario, two, (), blocks[: scenario.repeats])
    return ComparisonPlan(plan, {one.name: two[0].name for one in two})


def records_of(asked: ComparisonPlan) -> dict[str, ArmRecord]:
    """What study.json says of every arm, its comparison among it."""
    return {arm.name: replace(arm_record(arm), contest=asked.names[arm.name]) for arm in asked.plan.arms}


def with_control(name: str, control: str | None) -> str:
    """The arm's name under a control. InputError for one that is no variant of an arm."""
    if control is not None and control not in ALLOWED_CONTROLS:
        raise InputError(f"control {control!r}: allowed: {', '.join(ALLOWED_CONTROLS)}")
    return name if control is None else f"{name}+{control}"


def _three(baseline: Variant, candidate: Variant, ours: str, theirs: str, control: str | None) -> list[Arm]:
    over = {} if control is None else CONTROLS[control]  # type: ignore[index]  # checked by with_control
    found = []
    for one, name, kind in ((baseline, ours, None), (baseline, f"{ours}+a-a", "a-a"), (candidate, theirs, None)):
        config = TrainerConfig.model_validate(merge(one.nested, over), strict=True)
        declared = flatten(merge(one.declared, over))
        found.append(Arm(name, kind, ours if kind else None, declared, config))
    return found


def _plan(scenario: Scenario, arms: Sequence[Arm]) -> Plan:
    """Blocks shuffle comparisons; the sides of one stay neighbours in time, in each of their six orders in turn."""
    order = []
    threes = [arms[start : start + 3] for start in range(0, len(arms), 3)]
    for block in range(MOST_BLOCKS_PLANNED):
        every_order, place = divmod(block, 6)
        sides = []
        for number, three in enumerate(threes):
            orders = list(permutations(arm.name for arm in three))
            random.Random(f"{scenario.seed}/{number}/{every_order}").shuffle(orders)
            sides.append(orders[place])
        random.Random(f"{scenario.seed}/{block}").shuffle(sides)
        order.append(tuple(name for three in sides for name in three))
    comparisons = tuple(ComparisonRecord(three[0].name, three[2].name) for three in threes)
    return Plan(scenario, tuple(arms), comparisons, tuple(order))
