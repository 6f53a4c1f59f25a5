"""Find two states of a user's own repository, and run a check of them: of a scenario's arms, or of commands.

A state is a folder, or a revision unpacked into a temporary folder (``git archive``), without untracked files. Both
sides run the installed harness, with their state as working directory. Files that a scenario names by a relative path
are the same for both sides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.attach.comparison import run_comparison
from harness.launch.code import OWN_FOLDER, Code, holds_code
from harness.launch.protocol import VERSION
from harness.launch.study import create_folder
from harness.machine.environment import checkout_fingerprint, describe_checkout, git, record_environment
from harness.regress.decision import Limits
from harness.regress.gate import comparisons
from harness.regress.policy import MOST_BLOCKS_PLANNED
from harness.regress.run import (
    BASE,
    HEAD,
    ComparisonPlan,
    RegressionResult,
    UntilDecided,
    records_of,
    run_comparisons,
    side_of,
    unless_changed,
)
from harness.regress.text import left_out_note, same_code_note
from harness.scenario.commands import CommandArm, CommandPlan
from harness.scenario.load import LOOP
from harness.study.records import ArmRecord, ComparisonRecord
from trainer.config import TrainerConfig
from trainer.devices.profiles import is_file_name
from trainer.errors import InputError
from trainer.files import expanded
from trainer.user_code import files

_BRANCHES = 5  # number of branches that a message lists
_UNPACK_S = 600
_START_S = 60  # seconds to start Python alone


@dataclass(frozen=True)
class State:
    """One state of the user's code, as a folder with its files; found by :func:`find_states`."""

    folder: Path  # its working directory
    label: str  # its commit (``+changes`` if files differ), or the folder's name without a repository
    root: Path  # the repository's top folder, or ``folder`` without a repository
    path: tuple[str, ...] = ()  # folders that replace the repository's on Python's path, as ``src/``


def find_states(base: str, head: str, place: Path) -> tuple[State, State]:
    """Return the states ``base`` and ``head``, revisions unpacked below ``place``. Raise InputError if one is none."""
    imported = _import_folders()
    states = _find_state(base, place / BASE, imported), _find_state(head, place / HEAD, imported)
    if states[0].folder == states[1].folder:
        raise InputError(f"--base {base}, --head {head}: both are {states[0].folder}; give two states")
    return states


def note_same_code(states: Sequence[State]) -> None:
    """Print a note to stderr if all ``states`` have one label, so no file tracked by git differs between them."""
    labels = {state.label for state in states}
    if len(labels) == 1:
        print(f"note: {same_code_note(labels.pop())}", file=sys.stderr)


def _find_state(where: str, place: Path, imported: Sequence[Path]) -> State:
    """Return the state of a folder, or of a revision unpacked into ``place``. ``imported``: on Python's path."""
    if not where:
        raise InputError("an empty name is neither a folder nor a revision")
    current = Path.cwd()
    if Path(where).is_dir():
        folder = Path(where).resolve()
        stands_for, root = _top(current), _top(folder)
        if folder != root / current.relative_to(stands_for):  # ``folder`` has another depth than the current folder.
            stands_for, root = current, folder
        return State(folder, describe_checkout(folder) or folder.name, root, _path(root, stands_for, imported))
    try:
        commit = git(current, "rev-parse", "--verify", "--quiet", f"{where}^{{commit}}")
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(
            f"{where}: neither a folder nor a revision of the git repository at {current}{_branches(current)}"
        ) from error
    top = _top(current)
    subfolder = current.relative_to(top)
    place.mkdir()
    with subprocess.Popen(["git", "-C", str(top), "archive", commit], stdout=subprocess.PIPE) as archive:
        done = subprocess.run(
            ["tar", "-x", "-C", str(place)], stdin=archive.stdout, capture_output=True, text=True, timeout=_UNPACK_S
        )
    if done.returncode or archive.returncode:
        raise InputError(f"{where}: cannot be unpacked ({done.stderr.strip() or 'git archive failed'})")
    if not (place / subfolder).is_dir():
        raise InputError(f"{where}: has no folder {subfolder}")
    return State(place / subfolder, commit[:12], place, _path(place, top, imported))


def _branches(folder: Path) -> str:
    """Return the names of some branches of the repository around ``folder``, as the end of a message; else ""."""
    try:
        refs = git(
            folder, "for-each-ref", f"--count={_BRANCHES}", "--format=%(refname:short)", "refs/heads", "refs/remotes"
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"; branches: {', '.join(refs.split())}" if refs else ""


def check_functions(functions: Iterable[tuple[str, str]], states: Iterable[State]) -> list[str]:
    """Return ``MODULE:FUNCTION (file)`` of each function of a library. Raise InputError if a state lacks one."""
    roots = {state: state.root.resolve() for state in states}
    shared = []
    for key, name in sorted(functions):
        paths = {}
        for state in roots:
            try:
                places = [str(state.folder), *state.path]
                paths[state] = [path.resolve() for path in files(key, name, places)]
            except InputError as error:
                raise InputError(f"{state.label}: {error}") from error
        first, *later = paths.values()
        # An environment within the repository contains packages too.
        library = first[0].is_relative_to(sys.prefix) or not any(map(first[0].is_relative_to, roots.values()))
        if library and all(path == first for path in later):
            shared.append(f"{name} ({first[0]})")
            continue
        for state, root in roots.items():
            if outside := [path for path in paths[state] if not path.is_relative_to(root)]:
                raise InputError(
                    f"{state.label}: {key}: {name}: no such module in {state.folder}, so {outside[0]} would run; "
                    "give a state that has it, and call harness from the folder in which it lies"
                )
    return shared


def _top(folder: Path) -> Path:
    """Return the repository around ``folder``, or the folder itself without one."""
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except (OSError, subprocess.SubprocessError):
        return folder


def _import_folders() -> list[Path]:
    """Return the folders on Python's path, as a fresh Python process here has them."""
    # Uses a separate process, because the command adds folders to this one's path (for example a folder of tests).
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path))"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_START_S)
    return [Path(entry).resolve() for entry in json.loads(done.stdout.splitlines()[-1]) if entry]


def _path(root: Path, stands_for: Path, imported: Sequence[Path]) -> tuple[str, ...]:
    """Return the folders of ``root`` that take the place of ``imported`` ones of ``stands_for``, not of packages."""
    # Packages of an environment within the repository are not the user's code.
    packages = [prefix for prefix in (Path(sys.prefix), Path(sys.base_prefix)) if prefix.is_relative_to(stands_for)]
    folders = []
    for folder in imported:
        if folder.is_relative_to(stands_for) and not any(map(folder.is_relative_to, packages)):
            mapped = root / folder.relative_to(stands_for)
            if mapped != folder and mapped.is_dir():
                folders.append(str(mapped))
    return tuple(folders)


def is_of_user_code(asked: ComparisonPlan, *states: str) -> bool:
    """Return True if an arm of ``asked`` names user code, and none of ``states`` contains the harness's own code."""
    named = any(arm.config.user_functions for arm in asked.plan.arms)
    return named and not any(holds_code(state, Path.cwd()) for state in states)


def run_user_states(
    asked: ComparisonPlan, base: str, head: str, out: Path, command: Sequence[str], source: str, limits: Limits,
    budget_s: float,
) -> RegressionResult:  # fmt: skip
    """Run the arms with the user's code at ``base`` (also as A/A control) and ``head``, which must have all of it."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-states-") as parent:
        states = dict(zip((BASE, HEAD), find_states(base, head, Path(parent)), strict=True))
        fitted, arms = with_states(asked, states)
        left_s = budget_s - (time.monotonic() - begun_s)
        return run_comparisons(fitted, out, command, source, limits, max(left_s, 0.0), arms)


def with_states(asked: ComparisonPlan, states: Mapping[str, State]) -> tuple[ComparisonPlan, dict[str, ArmRecord]]:
    """Return ``asked`` with only the arms that name user code, and their records. InputError if a state lacks it."""
    selected = _only(asked, {arm.name for arm in asked.plan.arms if arm.config.user_functions})
    functions = {function for arm in selected.plan.arms for function in arm.config.user_functions}
    codes = {
        side: Code(str(OWN_FOLDER), sys.executable, state.label, VERSION, str(state.folder), state.path)
        for side, state in states.items()
    }
    shared = check_functions(functions, states.values())
    if len(shared) == len(functions):
        raise InputError(
            f"{', '.join(shared)}: both sides would import the installed package; install it with pip install -e, or "
            "call harness from the folder in which it lies"
        )
    note_same_code([*states.values()])
    environment = record_environment()
    of = {arm.name: codes[side_of(arm.name)] for arm in selected.plan.arms}
    planned = tuple(
        replace(arm, config=_anchored(arm.config), declared={**arm.declared, "code": of[arm.name].label})
        for arm in selected.plan.arms
    )
    selected = replace(selected, plan=replace(selected.plan, arms=planned))
    return selected, {
        name: replace(record, code=of[name], environment={**environment, "git_commit": of[name].label})
        for name, record in records_of(selected).items()
    }


def _only(asked: ComparisonPlan, names: set[str]) -> ComparisonPlan:
    """Return ``asked`` with only the arms ``names``. Prints a note on the comparisons that are left out."""
    plan = asked.plan
    if left_out := sorted({asked.names[arm.name] for arm in plan.arms if arm.name not in names}):
        print(left_out_note(left_out), file=sys.stderr)
    return replace(
        asked,
        plan=replace(
            plan,
            arms=tuple(arm for arm in plan.arms if arm.name in names),
            comparisons=tuple(comparison for comparison in plan.comparisons if comparison.baseline in names),
            blocks=tuple(tuple(name for name in block if name in names) for block in plan.blocks),
        ),
    )


def _anchored(config: TrainerConfig) -> TrainerConfig:
    """Return ``config`` with relative file paths made absolute, because its run starts in another folder."""
    nested = config.model_dump(mode="json")
    data, evaluation, device = nested["data"], nested["evaluation"] or {}, nested["compute"]["device"]
    corpora = [source for source in (data["corpus"], evaluation.get("corpus")) if source is not None]
    files = [(source, key) for source in corpora for key in ("parquet", "path", "chat_template")]
    files += [(nested["model"], "config"), (nested["model"], "pretrained")]
    files += [(data["tokenizer"], "sentencepiece"), (data["tokenizer"], "pretrained")]
    files += [(questions, "path") for questions in [evaluation.get("multiple_choice")] if questions is not None]
    if isinstance(device, dict):
        files += [(device, "recorded")] + [(device, "emulated")] * is_file_name(device["emulated"] or "")
    for section, key in files:
        name = section[key]
        if not isinstance(name, str) or "://" in name:
            continue
        # A missing tokenizer may be a name on the hub.
        if section is not data["tokenizer"] or key != "pretrained" or expanded(name).exists():
            section[key] = str(expanded(name).absolute())
    return TrainerConfig.model_validate(nested)


def run_command_states(
    plan: CommandPlan, base: str, head: str, out: Path, command: Sequence[str], source: str, limits: Limits,
    budget_s: float,
) -> RegressionResult:  # fmt: skip
    """Run each arm's program with the user's code at ``base`` (also as A/A control) and at ``head``."""
    end_ns = time.monotonic_ns() + round(budget_s * 1e9)
    with tempfile.TemporaryDirectory(prefix="harness-states-") as parent:
        states = find_states(base, head, Path(parent))
        check_functions({(LOOP, arm.call.partition("(")[0]) for arm in plan.arms if arm.call is not None}, states)
        note_same_code(states)
        fingerprints_before = {str(state.folder): checkout_fingerprint(state.folder) for state in states}
        folder = create_folder(out, plan.scenario.name)
        enough = UntilDecided(limits, budget_s)
        planned = at_states(plan, *states)
        outcome = run_comparison(folder, planned, command, source, enough, end_ns)
        decided = comparisons(folder.read_study(), list(folder.runs()), limits)
        fingerprints_after = {path: checkout_fingerprint(Path(path)) for path in fingerprints_before}
        decided = unless_changed(decided, fingerprints_before, fingerprints_after, limits)
    return RegressionResult(folder.path, outcome.status, decided, enough.spent_s, outcome.cut)


def at_states(plan: CommandPlan, base: State, head: State) -> CommandPlan:
    """Return ``plan`` with each arm as ``<arm>@base``, ``<arm>@base+a-a`` and ``<arm>@head``, without its controls."""
    arms: list[CommandArm] = []
    compared = []
    for arm in (entry for entry in plan.arms if entry.control is None):
        base_name, head_name = f"{arm.name}@{BASE}", f"{arm.name}@{HEAD}"
        with_comparison = replace(arm, comparison=arm.name)
        first = replace(with_comparison, name=base_name, folder=str(base.folder), path=base.path, code=base.label)
        arms += [
            first,
            replace(first, name=f"{base_name}+a-a", control="a-a", of=base_name),
            replace(with_comparison, name=head_name, folder=str(head.folder), path=head.path, code=head.label),
        ]
        compared.append(ComparisonRecord(base_name, head_name))
    names = [arm.name for arm in arms]
    # Each block begins with another arm.
    blocks = tuple((*names[block % len(names) :], *names[: block % len(names)]) for block in range(MOST_BLOCKS_PLANNED))
    return replace(plan, arms=tuple(arms), comparisons=tuple(compared), blocks=blocks)
