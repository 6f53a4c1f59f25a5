"""Runs a check of two states of somebody's own repository: commands of a scenario at a base revision and as they are.

A revision is unpacked beside the repository's history (``git archive``): nothing is registered in it. What git does not
hold (data, checkpoints) is not there; a command that needs it names it by an absolute path.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.attach.comparison import run_comparison
from harness.launch.study import create_folder
from harness.machine.git import describe_checkout, git
from harness.regression.gate import Limits, WhyUndecided, comparisons, nothing
from harness.regression.plan import BASE, HEAD
from harness.regression.run import RegressionResult, UntilDecided
from harness.regression.thresholds import MOST_BLOCKS_PLANNED
from harness.scenario.commands import CommandArm, CommandPlan
from harness.study.records import ComparisonRecord
from trainer.errors import InputError

_UNPACK_S = 600


@dataclass(frozen=True)
class State:
    """A state of the user's code: where it lies, and its commit (``+changes`` where files differ from that)."""

    folder: Path
    label: str

    def fingerprint(self) -> str:
        """Another one means that files which git knows have changed."""
        try:
            return hashlib.sha256(git(self.folder, "diff", "HEAD").encode()).hexdigest() + git(
                self.folder, "rev-parse", "HEAD"
            )
        except (OSError, subprocess.SubprocessError):
            return ""


def run_command_states(
    plan: CommandPlan, base: str, head: str, out: Path, command: Sequence[str], source: str, limits: Limits,
    budget_s: float,
) -> RegressionResult:  # fmt: skip
    """Run each command of ``plan`` at ``base`` (twice) and ``head`` until all is decided, or the budget is spent.

    A block that runs then, because it is slow or hangs, is ended and left out.

    InputError where a side is neither a folder nor a revision of the repository around this folder.
    """
    end_ns = time.monotonic_ns() + round(budget_s * 1e9)
    with tempfile.TemporaryDirectory(prefix="harness-states-") as place:
        states = {BASE: find_state(base, Path(place, BASE)), HEAD: find_state(head, Path(place, HEAD))}
        if states[BASE].folder == states[HEAD].folder:
            raise InputError(f"--base {base}, --head {head}: both are {states[BASE].folder}; give two states")
        before = {state.folder: state.fingerprint() for state in states.values()}
        folder = create_folder(out, plan.scenario.name)
        enough = UntilDecided(limits, budget_s)
        asked = at_states(plan, states[BASE], states[HEAD])
        outcome = run_comparison(folder, asked, command, source, enough, end_ns)
        decided = comparisons(folder.read_study(), list(folder.runs()), limits)
        changed = [str(state.folder) for state in states.values() if state.fingerprint() != before[state.folder]]
    if changed:
        missing = WhyUndecided("code changed", tuple(changed))
        decided = [nothing(c.name, c.baseline, c.candidate, limits.step, missing, c.blocks) for c in decided]
    return RegressionResult(folder.path, outcome.status, decided, enough.spent_s, outcome.cut)


def at_states(plan: CommandPlan, base: State, head: State) -> CommandPlan:
    """Each arm of ``plan`` as ``<arm>@base``, ``<arm>@base+a-a`` and ``<arm>@head``; its own controls are left out."""
    arms: list[CommandArm] = []
    compared = []
    for arm in (one for one in plan.arms if one.control is None):
        ours, theirs = f"{arm.name}@{BASE}", f"{arm.name}@{HEAD}"
        here = replace(arm, comparison=arm.name)
        first = replace(here, name=ours, folder=str(base.folder), code=base.label)
        arms += [
            first,
            replace(first, name=f"{ours}+a-a", control="a-a", of=ours),
            replace(here, name=theirs, folder=str(head.folder), code=head.label),
        ]
        compared.append(ComparisonRecord(ours, theirs))
    names = [arm.name for arm in arms]
    # Another one begins each block.
    blocks = tuple((*names[block % len(names) :], *names[: block % len(names)]) for block in range(MOST_BLOCKS_PLANNED))
    return replace(plan, arms=tuple(arms), comparisons=tuple(compared), blocks=blocks)


def find_state(where: str, place: Path) -> State:
    """The folder ``where``, or the revision of that name unpacked into ``place``; as deep within as this folder is."""
    if Path(where).is_dir():
        folder = Path(where).resolve()
        return State(folder, describe_checkout(folder) or folder.name)
    here = Path.cwd()
    try:
        commit = git(here, "rev-parse", "--verify", "--quiet", f"{where}^{{commit}}")
        within = git(here, "rev-parse", "--show-prefix")
        top = Path(git(here, "rev-parse", "--show-toplevel"))
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"{where}: neither a folder nor a revision of the git repository at {here}") from error
    place.mkdir()
    with _archive(top, commit) as archive:
        done = subprocess.run(
            ["tar", "-x", "-C", str(place)], stdin=archive.stdout, capture_output=True, text=True, timeout=_UNPACK_S
        )
    if done.returncode or archive.returncode:
        raise InputError(f"{where}: cannot be unpacked ({done.stderr.strip() or 'git archive failed'})")
    if not (place / within).is_dir():
        raise InputError(f"{where}: has no folder {within}")
    return State(place / within, commit[:12])


@contextmanager
def _archive(top: Path, commit: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["git", "-C", str(top), "archive", commit], stdout=subprocess.PIPE) as archive:
        yield archive
