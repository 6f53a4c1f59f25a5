"""Finds what is missing from a study or failed in it: failed runs, missing blocks, problems of probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.explain.lead_use import LeadUse
from harness.explain.ledger import RunLedger, arm_lead
from harness.explain.policy import MIN_BLOCKS
from harness.study.contract import PROFILED
from harness.study.records import COMMAND, ArmRecord, RunRecord, StudyRecord
from harness.study.run_data import RunData

StudyProblemKind = Literal[
    "nothing finished", "partial", "stray", "status", "ended", "no measured step", "few blocks", "few steps",
    "few parts", "diverged", "compiled", "lead", "left out",
]  # fmt: skip

LeadRemedy = Literal["slices", "runs", "command"]  # turns of this trainer, whole runs of it, or a program of others


@dataclass(frozen=True)
class RunFailure:
    """How a run of ``arm`` ended before it was done; ``error``: the first line of its message."""

    arm: str
    status: str
    error: str | None
    exit_code: int | None


@dataclass(frozen=True)
class StudyProblem:
    """Something that is missing from a study."""

    kind: StudyProblemKind
    # "partial": finished ones of the planned runs; "few blocks": blocks; "diverged", "compiled": runs that did
    count: int = 0
    planned: int = 0  # "partial": runs; "diverged", "compiled": of so many
    status: str = ""  # "status": the study's
    arm: str = ""  # "no measured step", "diverged", "compiled", "lead": whose; "left out": which
    # "partial": the other planned runs (``arm/block``); "stray": arms not of the study; "left out": missing packages
    names: tuple[str, ...] = ()
    lead_use: LeadUse | None = None  # "lead": how much of its steps was made before
    remedy: LeadRemedy = "slices"  # "lead": of what, by how the arm was measured
    failure: RunFailure | None = None  # "ended": how all these ``blocks`` did
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProbeProblem:
    """What a probe could not do, as it reported that, and in which runs (``arm/block``)."""

    text: str
    runs: tuple[str, ...]
    everywhere: bool  # whether in all runs of the study


def failures(names: Iterable[str], records: Mapping[str, Sequence[RunRecord]]) -> tuple[RunFailure, ...]:
    """The first failure of each arm that has one."""
    bad = ([record for record in records.get(name, ()) if record.status != "done"] for name in names)
    return tuple(_failure(found[0]) for found in bad if found)


def study_problems(
    study: StudyRecord,
    arms: Sequence[ArmRecord],
    records: Mapping[str, Sequence[RunRecord]],
    ledgers: Mapping[str, Mapping[int, RunLedger]],
    blocks: int,
) -> tuple[StudyProblem, ...]:
    """What is missing from ``study``, most important first. ``arms`` as in study.json, the rest by arm."""
    found = []
    profiled = {arm.name for arm in arms if arm.control == PROFILED}
    known = {arm.name for arm in study.arms}
    stray = [arm.name for arm in arms if known and arm.name not in known]
    planned = _planned(study, [arm for arm in arms if arm.name not in stray], records)
    done = {(name, block) for name, group in ledgers.items() for block in group}
    done |= {(name, one.block) for name in profiled for one in records.get(name, ()) if one.status == "done"}
    absent = [f"{name}/{block}" for name, block in planned if (name, block) not in done]
    finished = len(planned) - len(absent)
    if not finished:
        found.append(StudyProblem("nothing finished"))
    elif absent:
        found.append(StudyProblem("partial", finished, len(planned), names=tuple(absent)))
    if stray:
        found.append(StudyProblem("stray", names=tuple(stray)))
    if study.status != "done":
        found.append(StudyProblem("status", status=study.status))
    endings: dict[RunFailure | str, list[int]] = {}  # one for all blocks of an arm that ended alike
    for name, group in records.items():
        for record in group if name not in stray else ():
            if record.status != "done":
                endings.setdefault(_failure(record), []).append(record.block)
            elif name not in profiled and record.block not in ledgers.get(name, {}):
                endings.setdefault(name, []).append(record.block)
    for ending, where in endings.items():
        if isinstance(ending, RunFailure):
            found.append(StudyProblem("ended", failure=ending, blocks=tuple(where)))
        else:
            found.append(StudyProblem("no measured step", arm=ending, blocks=tuple(where)))
    found += _diverged(study, arms, ledgers)
    found += _compiled(records)
    found += _lead(study, arms, ledgers)
    found += [StudyProblem("left out", arm=arm, names=tuple(missing)) for arm, missing in study.left_out.items()]
    if finished and blocks < MIN_BLOCKS:
        attached = any(record.facts.attached is not None for group in records.values() for record in group)
        one_run = attached and not any(COMMAND in arm.declared for arm in arms)  # whose blocks are parts of it
        kind: StudyProblemKind = "few parts" if study.is_training else "few steps" if one_run else "few blocks"
        found.append(StudyProblem(kind, blocks))
    return tuple(found)


def _planned(
    study: StudyRecord, arms: Sequence[ArmRecord], records: Mapping[str, Sequence[RunRecord]]
) -> list[tuple[str, int]]:
    """Arm and block of every run of ``study``, in the order of the blocks; an arm is profiled once."""
    blocks = range(study.blocks) if study.blocks else sorted({one.block for group in records.values() for one in group})
    return [(arm.name, block) for block in blocks for arm in arms if block == blocks[0] or arm.control != PROFILED]


def _diverged(
    study: StudyRecord, arms: Sequence[ArmRecord], ledgers: Mapping[str, Mapping[int, RunLedger]]
) -> list[StudyProblem]:
    """Of arms that no comparison speaks of, and of controls whose arm trained well."""
    times = {name: sum(run.diverged for run in group.values()) for name, group in ledgers.items()}
    compared = {name for pair in study.comparisons for name in (pair.baseline, pair.candidate)}
    return [
        StudyProblem("diverged", times[arm.name], len(ledgers[arm.name]), arm=arm.name)
        for arm in arms
        if times.get(arm.name) and arm.name not in compared and not (arm.of and times.get(arm.of))
    ]


def _lead(
    study: StudyRecord, arms: Sequence[ArmRecord], ledgers: Mapping[str, Mapping[int, RunLedger]]
) -> Iterator[StudyProblem]:
    """Arms whose steps lived off batches that lay ready, and A/A controls whose arm's did not."""
    uses = {arm.name: arm_lead(ledgers.get(arm.name, {})) for arm in arms}
    worth = {name for name, use in uses.items() if use is not None and use.is_worth_saying}
    for arm in arms:
        if arm.name in worth and not (arm.control == "a-a" and arm.of in worth):
            attached = any(run.record.facts.attached is not None for run in ledgers[arm.name].values())
            remedy: LeadRemedy = "command" if attached else "runs" if study.interleave == "runs" else "slices"
            yield StudyProblem("lead", arm=arm.name, lead_use=uses[arm.name], remedy=remedy)


def _compiled(records: Mapping[str, Sequence[RunRecord]]) -> Iterator[StudyProblem]:
    """Arms whose measured steps hold the time of compiling."""
    for name, group in records.items():
        if compiled := sum(bool(record.facts.measured_compilations) for record in group):
            yield StudyProblem("compiled", compiled, len(group), arm=name)


def probe_problems(runs: Sequence[RunData]) -> tuple[ProbeProblem, ...]:
    """What probes could not do, each once."""
    where: dict[str, list[str]] = {}
    for run in runs:
        for problem in dict.fromkeys(run.probes.problems):
            where.setdefault(problem, []).append(f"{run.record.arm}/{run.record.block}")
    return tuple(ProbeProblem(text, tuple(names), len(names) == len(runs)) for text, names in where.items())


def _failure(record: RunRecord) -> RunFailure:
    error = record.error.splitlines()[0] if record.error else None
    return RunFailure(record.arm, record.status, error, record.exit_code)
