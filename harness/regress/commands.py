"""Runs a check of two states of somebody's own repository: commands of a scenario at a base revision and as they are.

What git does not hold (data, checkpoints) is not at a revision (harness.regress.states): a command that needs it
names it by an absolute path.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.attach.comparison import run_comparison
from harness.launch.study import create_folder
from harness.machine.git import checkout_fingerprint
from harness.regress.gate import comparisons
from harness.regress.plan import BASE, HEAD
from harness.regress.policy import MOST_BLOCKS_PLANNED
from harness.regress.records import Limits
from harness.regress.run import RegressionResult, UntilDecided, unless_changed
from harness.regress.states import State, check_functions, find_states, note_same_code
from harness.scenario.commands import CommandArm, CommandPlan
from harness.scenario.load import LOOP
from harness.study.records import ComparisonRecord


def run_command_states(
    plan: CommandPlan, base: str, head: str, out: Path, command: Sequence[str], source: str, limits: Limits,
    budget_s: float,
) -> RegressionResult:  # fmt: skip
    """Run each command of ``plan`` at ``base`` (twice) and ``head`` until all is decided, or the budget is spent.

    A block that runs then, because it is slow or hangs, is ended and left out.

    InputError where a side is neither a folder nor a revision of the repository around this folder, or lacks a function
    that trains.
    """
    end_ns = time.monotonic_ns() + round(budget_s * 1e9)
    with tempfile.TemporaryDirectory(prefix="harness-states-") as place:
        states = find_states(base, head, Path(place))
        check_functions({(LOOP, arm.call.partition("(")[0]) for arm in plan.arms if arm.call is not None}, states)
        note_same_code(states)
        before = {str(state.folder): checkout_fingerprint(state.folder) for state in states}
        folder = create_folder(out, plan.scenario.name)
        enough = UntilDecided(limits, budget_s)
        asked = at_states(plan, *states)
        outcome = run_comparison(folder, asked, command, source, enough, end_ns)
        decided = comparisons(folder.read_study(), list(folder.runs()), limits)
        after = {where: checkout_fingerprint(Path(where)) for where in before}
        decided = unless_changed(decided, before, after, limits)
    return RegressionResult(folder.path, outcome.status, decided, enough.spent_s, outcome.cut)


def at_states(plan: CommandPlan, base: State, head: State) -> CommandPlan:
    """Each arm of ``plan`` as ``<arm>@base``, ``<arm>@base+a-a`` and ``<arm>@head``; its own controls are left out."""
    arms: list[CommandArm] = []
    compared = []
    for arm in (one for one in plan.arms if one.control is None):
        ours, theirs = f"{arm.name}@{BASE}", f"{arm.name}@{HEAD}"
        here = replace(arm, comparison=arm.name)
        first = replace(here, name=ours, folder=str(base.folder), path=base.path, code=base.label)
        arms += [
            first,
            replace(first, name=f"{ours}+a-a", control="a-a", of=ours),
            replace(here, name=theirs, folder=str(head.folder), path=head.path, code=head.label),
        ]
        compared.append(ComparisonRecord(ours, theirs))
    names = [arm.name for arm in arms]
    # Another one begins each block.
    blocks = tuple((*names[block % len(names) :], *names[: block % len(names)]) for block in range(MOST_BLOCKS_PLANNED))
    return replace(plan, arms=tuple(arms), comparisons=tuple(compared), blocks=blocks)
