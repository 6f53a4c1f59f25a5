"""Runs a check of two states of somebody's own repository: a scenario whose arms name code of the user's own.

Both sides run the harness that is installed here. Runs of a side have that state of the user's code as their working
directory. What a scenario itself names by a relative path (corpus, tokenizer, device) lies here for both sides; what
the user's code opens, and its arguments, are of its state.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.launch.code import OWN_FOLDER, Code, holds_code
from harness.launch.protocol import VERSION
from harness.machine.environment import record_environment
from harness.regress.plan import BASE, HEAD, ComparisonPlan, records_of
from harness.regress.records import Limits
from harness.regress.run import RegressionResult, run_comparisons, side_of
from harness.regress.states import State, check_functions, find_states, note_same_code
from harness.regress.text import left_out_note
from harness.study.records import ArmRecord
from trainer.config import TrainerConfig
from trainer.devices.profiles import is_file_name
from trainer.errors import InputError
from trainer.files import expanded


def is_of_user_code(asked: ComparisonPlan, *states: str) -> bool:
    """Whether an arm names code of the user's own, and none of ``states`` (folders or revisions) is of the harness."""
    named = any(arm.config.user_functions for arm in asked.plan.arms)
    return named and not any(holds_code(state, Path.cwd()) for state in states)


def run_user_states(
    asked: ComparisonPlan, base: str, head: str, out: Path, command: Sequence[str], source: str, limits: Limits,
    budget_s: float,
) -> RegressionResult:  # fmt: skip
    """Run the arms of ``asked`` with the user's code at ``base`` (twice) and ``head`` until all is decided.

    Raises InputError where a side is neither a folder nor a revision of the repository around this folder, or lacks
    what an arm names.
    """
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-states-") as place:
        states = dict(zip((BASE, HEAD), find_states(base, head, Path(place)), strict=True))
        fitted, arms = with_states(asked, states)
        left_s = budget_s - (time.monotonic() - begun_s)
        return run_comparisons(fitted, out, command, source, limits, max(left_s, 0.0), arms)


def with_states(asked: ComparisonPlan, states: Mapping[str, State]) -> tuple[ComparisonPlan, dict[str, ArmRecord]]:
    """The comparisons of arms that name code of the user's own, and what study.json says of each arm.

    Raises InputError where a state lacks what an arm names, or where none of it lies in the two states.
    """
    kept = _only(asked, {arm.name for arm in asked.plan.arms if arm.config.user_functions})
    functions = {one for arm in kept.plan.arms for one in arm.config.user_functions}
    codes = {side: _code(state) for side, state in states.items()}
    shared = check_functions(functions, states.values())
    if len(shared) == len(functions):
        raise InputError(
            f"{', '.join(shared)}: both sides import what is installed; install it with pip install -e, or "
            "call harness from the folder in which it lies"
        )
    note_same_code([*states.values()])
    environment = record_environment()
    planned = []
    for arm in kept.plan.arms:
        code = codes[side_of(arm.name)]
        planned.append(replace(arm, config=_anchored(arm.config), declared={**arm.declared, "code": code.label}))
    kept = replace(kept, plan=replace(kept.plan, arms=tuple(planned)))
    records = {}
    for name, record in records_of(kept).items():
        code = codes[side_of(name)]
        records[name] = replace(record, code=code, environment={**environment, "git_commit": code.label})
    return kept, records


def _only(asked: ComparisonPlan, names: set[str]) -> ComparisonPlan:
    """``asked`` without arms that run the same code on both sides."""
    plan = asked.plan
    if left_out := sorted({asked.names[arm.name] for arm in plan.arms if arm.name not in names}):
        print(left_out_note(left_out), file=sys.stderr)
    return replace(
        asked,
        plan=replace(
            plan,
            arms=tuple(arm for arm in plan.arms if arm.name in names),
            comparisons=tuple(one for one in plan.comparisons if one.baseline in names),
            blocks=tuple(tuple(name for name in block if name in names) for block in plan.blocks),
        ),
    )


def _code(state: State) -> Code:
    return Code(str(OWN_FOLDER), sys.executable, state.label, VERSION, str(state.folder), state.path)


def _anchored(config: TrainerConfig) -> TrainerConfig:
    """``config`` with the files that it names by relative paths named from here, as its run starts elsewhere."""
    nested = config.model_dump(mode="json")
    data, device = nested["data"], nested["compute"]["device"]
    corpus, tokenizer, model = data["corpus"], data["tokenizer"], nested["model"]
    for key in ("config", "pretrained"):
        if isinstance(model[key], str):
            model[key] = str(expanded(model[key]).absolute())
    files = ("parquet", "path", "chat_template")
    corpora = [one for one in (corpus, (nested["evaluation"] or {}).get("corpus")) if one is not None]
    for section, key in (
        *((one, key) for one in corpora for key in files),
        (tokenizer, "sentencepiece"),
        (tokenizer, "pretrained"),
    ):
        name = section[key]
        # Whatever is not here may be a name on the hub.
        if name is not None and "://" not in name and (key != "pretrained" or expanded(name).exists()):
            section[key] = str(expanded(name).absolute())
    if (questions := (nested["evaluation"] or {}).get("multiple_choice")) is not None:
        questions["path"] = str(expanded(questions["path"]).absolute())
    if isinstance(device, dict):
        for key in ("emulated", "recorded"):
            if device[key] is not None and (key == "recorded" or is_file_name(device[key])):
                device[key] = str(expanded(device[key]).absolute())
    return TrainerConfig.model_validate(nested)
