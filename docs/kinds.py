"""Renders an example record of each kind that a report can state, for the documentation and for a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

from harness.explain.causes import GROWING, PADDING, SETTING, SlowCause
from harness.explain.lead_use import LeadUse
from harness.explain.statistics import Estimate
from harness.explain.unusual_steps import LongSteps
from harness.explain.wall import StepPart
from harness.judge.comparisons import Absent, AbsentKind, Measured, Missing, MissingKind
from harness.judge.confounds import Confound, ConfoundKind
from harness.judge.doubts import (
    RULE_OF,
    UNDECIDED_KINDS,
    Bar,
    DoubtKind,
    Remedy,
    RemedyKind,
    RunFailure,
    StudyProblem,
    StudyProblemKind,
    doubt,
)
from harness.judge.losses import Losses
from harness.judge.probes.machine_load import DeviceFinding, DeviceFindingKind, HostFinding, HostFindingKind
from harness.judge.report_types import Advice, AdviceCost, Diagnosis, DiagnosisKind, DiagnosisRemedy, NoMfu
from harness.judge.verdicts import InTotal, Verdict
from harness.judge.waits import Waits
from harness.show.advice import advice_line, barred_text
from harness.show.names import ArmNames
from harness.show.text.doubts import confound_lines, doubt_text, problem_lines, remedy_text
from harness.show.text.findings import TEXTS, TITLES, device_finding, diagnosis_remedy, diagnosis_text, host_finding
from harness.show.text.verdicts import finding, mfu_reason, missing_text, reason, undecided_because
from harness.show.words import part_of

ARMS = ("text", "tokens")
_NO_MFU = get_args(get_type_hints(NoMfu)["kind"])
STEP_MS = 40.0
_GAIN, _LOSS, _NONE = Estimate(1.12, 1.08, 1.15, 6), Estimate(0.91, 0.88, 0.94, 6), Estimate(1.001, 0.99, 1.01, 6)
_WIDE = Estimate(1.04, 0.97, 1.12, 6)
_LONG = LongSteps(10, 240, 1530.0, STEP_MS, "log", (1200.0, 1800.0))
_WAITS = Waits(STEP_MS, 4.0, {"tokenize": 4.0}, exposed_ms={"tokenize": 4.0}, contended_ms=0.1)


@dataclass(frozen=True)
class KindsSection:
    """Section ``title`` of the documentation: for each of ``kinds`` (such as all kinds of doubts) an example text,
    which ``render`` returns.
    """

    title: str
    kinds: Sequence[str]
    render: Callable[[Any], str]


def measured(verdict: Verdict, cause: DoubtKind | None = None) -> Measured:
    """Return an example comparison with the given verdict. ``cause``: why it is undecided."""
    doubts = () if cause is None else (doubt(cause, *ARMS, share=0.12, cores=(1.6, 2.0)),)
    ratio = {"gain": _GAIN, "loss": _LOSS, "none": _NONE, "undecided": _WIDE}[verdict]
    return Measured(
        measure="tokens/s", ratio=ratio, tokens_ratio=ratio, step_time=ratio, isolated=None, ceiling=None,
        from_waits=None, ideal=None, noise_floor=None if cause == "no noise floor" else 0.02, noise_floor_of="text",
        positions_per_step=1.0, trained_per_step=1.0, baseline_waits=_WAITS, candidate_waits=_WAITS, verdict=verdict,
        resolution=0.02 if cause is None else 0.12, absent={}, cause=doubts[0] if doubts else None,
        losses=Losses(2.912, 3.405, ("tokens",) if cause == "diverged" else (), differ=cause == "other loss"),
        repeated=(0.0, 0.75) if cause == "repeated data" else None,
        used_lead=(0.0, 0.08) if cause == "lead" else (0.0, 0.0),
        same_again=Estimate(1.05, 1.03, 1.07, 6),
        in_total=InTotal(0.95, 0.97, "candidate", _LONG, 0, 5, 6),
        doubts=doubts,
    )  # fmt: skip


def _verdict(kind: Verdict) -> str:
    return finding(measured(kind, "too coarse" if kind == "undecided" else None))


def _undecided(kind: DoubtKind) -> str:
    return undecided_because(measured("undecided", kind)) or ""


def _doubt(kind: DoubtKind) -> str:
    cores = (1.6, 2.0) if kind == "too noisy" else None
    return doubt_text(
        doubt(kind, "text", share=0.12 if RULE_OF[kind].unit else None, where=_PLACES.get(kind, ""), cores=cores)
    )


_PLACES: dict[DoubtKind, str] = {
    "not replayable": "no fetch", "mixed data": "corpus_fingerprint", "mixed code": "program_fingerprint",
    "configuration": "data.batch_size", "fact": "dtype", "environment": "torch", "other batches": "positions",
    "unfinished": "tokens", "throttled": "sw_thermal_slowdown",
}  # fmt: skip
_DIFFERENCES: dict[ConfoundKind, Confound] = {
    "diverged": Confound("diverged", ARMS, "tokens"),
    "losses": Confound("losses", ARMS, values=(2.912, 3.405)),
    "repeated data": Confound("repeated data", ARMS, values=(0.0, 0.75)),
    "lead": Confound("lead", ARMS, values=(0.0, 0.08)),
    "mixed data": Confound("mixed data", ("text", ""), "corpus_fingerprint"),
    "mixed code": Confound("mixed code", ("text", ""), "program_fingerprint"),
    "configuration": Confound("configuration", ARMS, "data.batch_size", (8, 16)),
    "fact": Confound("fact", ARMS, "dtype", ("float32", "bfloat16")),
    "environment": Confound("environment", ARMS, "torch", ("2.10.0", "2.11.0")),
    "useful tokens": Confound("useful tokens", ARMS, values=(0.61, 1.0)),
    "other batches": Confound("other batches", ARMS, "positions", (2048, 1630)),
    "other steps": Confound("other steps", ARMS, values=(120, 90), ratio=1.1),
    "host load": Confound("host load", ARMS, values=(0.1, 1.6)),
    "sessions": Confound("sessions", ARMS, blocks=(1, 3)),
    "unfinished": Confound("unfinished", ARMS, "tokens", blocks=(2,)),
    "block counts": Confound("block counts", ARMS, values=(6, 5)),
    "compared blocks": Confound("compared blocks", ARMS, values=(5, 6)),
    "SM clock": Confound("SM clock", ARMS, values=(1980, 1755), device=0),
    "throttled": Confound("throttled", ARMS, "sw_thermal_slowdown", (0.0, 0.31), device=0),
    "other processes": Confound("other processes", ARMS, device=0),
}
_FAILURE = RunFailure("tokens", "failed", None, -9)
_PROBLEM = StudyProblem(
    "partial", 2, 6, "interrupted", "tokens", ("tokens/4", "tokens/5"), LeadUse(0.08, 0.05, 0.11, 6),
    failure=_FAILURE, blocks=(4, 5),
)  # fmt: skip
_HOST: dict[HostFindingKind, HostFinding] = {
    "quota throttled": HostFinding("quota throttled", 0.31, 2.0),
    "threads over quota": HostFinding("threads over quota", 8, 2.0),
    "near the memory limit": HostFinding("near the memory limit", 15.2e9, 16e9),
    "waited for memory": HostFinding("waited for memory", 0.04),
    "waited for the disk": HostFinding("waited for the disk", 0.12),
    "waited for a core": HostFinding("waited for a core", 0.4, role="main"),
    "waited for the quota": HostFinding("waited for the quota", 0.4, role="loaders"),
    "read from disk": HostFinding("read from disk", 85e6, role="loaders"),
    "page faults": HostFinding("page faults", 40, role="main"),
    "other processes": HostFinding("other processes", 1.6, 1.9),
    "stolen cores": HostFinding("stolen cores", 0.5),
    "missed readings": HostFinding("missed readings", 12, 400),
}
_DEVICE: dict[DeviceFindingKind, DeviceFinding] = {
    "clock fell": DeviceFinding("clock fell", 1980, 1755),
    "slowed down": DeviceFinding("slowed down", 0.31, reason="sw_thermal_slowdown"),
    "other processes": DeviceFinding("other processes", 1, 12e9),
    "missed readings": DeviceFinding("missed readings", 12, 400),
}


_FIGURES: dict[str, dict[str, float]] = {
    GROWING: {"first_ms": 22.0, "last_ms": 63.0, "hooks_first": 4, "hooks_last": 94},
    PADDING: {"share": 0.6, "column_share": 0.5},
    "breaks": {"breaks": 3},
    "memory": {"bytes_per_step": 2.4e6, "full_s": 5400.0},
    "start-up": {"skipped": 320},
}


def _cause(kind: str) -> str:
    cause = SlowCause(
        kind, "train.py:88", "loss.item()", 1.0, ms=6.0, bytes=8_000_000, steps=12, of=200, rest_ms=7520.0,
        spent_ms=800.0, wall_ms=8000.0, figures=_FIGURES.get(kind, {}),
    )  # fmt: skip
    cause = replace(cause, ms=960.0, times=3.0) if kind in ("retries", "compiled") else cause
    cause = replace(cause, phase="forward", called="forward") if kind == GROWING else cause
    cause = replace(cause, place="anomaly") if kind == SETTING else cause
    subject, text, support = TEXTS[kind]([cause], part_of(STEP_MS))
    return f"{subject}: {text}. {support}"


def _diagnosis(kind: DiagnosisKind) -> str:
    ms = Estimate(18.0, 17.0, 19.0, 6)
    part = StepPart(*_PARTS.get(kind, ("forward", ms, 0.45)))
    diagnosis = Diagnosis(kind, part.name, ms, 0.45, Estimate(1.82, 1.74, 1.9, 6), kind == "padding", "model", part)
    return f"{TITLES[kind]}: {diagnosis_text(diagnosis, STEP_MS)}"


_LINE = ("train.py:88", Estimate(18.0, 17.0, 19.0, 6), 0.45, "code")
_PARTS: dict[DiagnosisKind, Any] = {
    "input-bound": ("tokenize", Estimate(18.0, 17.0, 19.0, 6), 0.45, "data"),
    "checkpoint-bound": (*_LINE, "torch.save(model, path)"),
    "own code": (*_LINE, "log(loss)"),
}


_REMEDY_FIGURES = {"worker": 0.0, "ms": 33.1, "others_ms": 0.55, "batches": 40.0}  # of remedies
_CHANGES: dict[AdviceCost, str] = {
    "processes": "workers=2", "no processes": "workers=0", "memory": "prefetch=8", "pretokenized copy": "tokenize=0",
    "late check": "sync=late",
    "its data path": "tokens",
}  # fmt: skip


def _advice(cost: AdviceCost) -> str:
    return advice_line(Advice(_CHANGES[cost], _GAIN, cost, worth=True), "text", ArmNames(ARMS))


def _absent(kind: AbsentKind) -> str:
    detail = "no fetch" if kind == "replay refused" else "compute.dtype"
    return reason(Absent(kind, ARMS[:1], 2, 1.4, detail, doubt("no core", "text", share=0.2)))


def _difference(kind: ConfoundKind) -> str:
    return confound_lines([_DIFFERENCES[kind]])[0]


def _remedy(kind: RemedyKind) -> str:
    return remedy_text(Remedy(kind, 9 if kind == "more blocks" else None))


def _missing(kind: MissingKind) -> str:
    return missing_text(Missing(kind, ARMS[1:], (_FAILURE,) if kind == "no finished run" else ()))


SECTIONS: Sequence[KindsSection] = (
    KindsSection("Verdicts of a comparison", get_args(Verdict), _verdict),
    KindsSection("Why a comparison is undecided", UNDECIDED_KINDS, _undecided),
    KindsSection("Doubts", get_args(DoubtKind), _doubt),
    KindsSection("Remedies", get_args(RemedyKind), _remedy),
    KindsSection("Undeclared differences", get_args(ConfoundKind), _difference),
    KindsSection(
        "Problems of a study", get_args(StudyProblemKind), lambda kind: problem_lines([replace(_PROBLEM, kind=kind)])[0]
    ),
    KindsSection("Comparisons that were not measured", get_args(MissingKind), _missing),
    KindsSection("Figures that are missing", get_args(AbsentKind), _absent),
    KindsSection("MFU that is missing", _NO_MFU, lambda kind: mfu_reason(NoMfu(kind, "NVIDIA L4")) or ""),
    KindsSection("Findings on the host", get_args(HostFindingKind), lambda kind: host_finding(_HOST[kind])),
    KindsSection("Findings on a device", get_args(DeviceFindingKind), lambda kind: device_finding(_DEVICE[kind])),
    KindsSection("Diagnoses of a program", get_args(DiagnosisKind), _diagnosis),
    KindsSection(
        "Remedies of a diagnosis", get_args(DiagnosisRemedy), lambda kind: diagnosis_remedy(kind, _REMEDY_FIGURES)
    ),
    KindsSection("Causes of slow steps", tuple(TEXTS), _cause),
    KindsSection("Loader settings without a prediction", get_args(Bar), lambda kind: barred_text(kind, "text")),
    KindsSection("Advice, by what it costs", get_args(AdviceCost), _advice),
)
