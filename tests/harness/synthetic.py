"""Studies with a known truth: a tiny simulation of loop and loader that fills the contract's tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from harness.explain.statistics import Estimate
from harness.judge.comparisons import Absent, Figure
from harness.judge.doubts import Doubt
from harness.judge.losses import Losses
from harness.judge.report_types import StudyReport
from harness.judge.verdicts import InTotal, judge
from harness.show import markdown
from harness.show.first_screen import first_screen
from harness.study.contract import PHASES, SAMPLE_COLUMNS, SPAN_COLUMNS, STEP_COLUMNS, Columns, arrow_schema
from harness.study.records import ArmRecord, ComparisonRecord, RunFacts, RunRecord, StudyRecord
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from trainer.telemetry import StageSpan

MS = 1_000_000
NOISE = {"day": 0.1, "block": 0.004, "repetition": 0.008, "step": 0.02}  # standard deviations of log durations
ENVIRONMENT = {"python": "3.11.9", "torch": "2.11.0", "numpy": "2.2.0", "git_commit": "0123abc", "cpu": "Synthetic"}


@dataclass
class Arm:
    """One arm or control: what each stage and phase costs per step, in milliseconds, before noise."""

    name: str
    control: str | None = None
    of: str | None = None
    read: float = 0.1
    tokenize: float = 1.0
    pack: float = 0.2
    transfer: float = 0.0
    workers: int = 0
    compute: dict[str, float] = field(
        default_factory=lambda: {"h2d": 0.1, "forward": 9.0, "backward": 17.0, "optimizer": 3.0, "sync": 0.6}
    )
    off_core: dict[str, float] = field(default_factory=dict)  # of a phase: without a core, of what it costs
    rare: dict[str, float] = field(default_factory=dict)  # of a phase: milliseconds that each tenth step takes more
    contended: float = 0.0
    tokens: int = 2048
    trained: int = 1900
    declared: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    other_cpu_cores: float = 0.02
    failed_blocks: tuple[int, ...] = ()
    loss: float = 3.0
    nan_from: int | None = None  # the batch from which its loss is NaN

    def variant(self, control: str, **changes: Any) -> Arm:
        state = {**vars(self), "name": f"{self.name}+{control}", "control": control, "of": self.name, **changes}
        return Arm(**{**state, "failed_blocks": changes.get("failed_blocks", ())})

    def controls(self, *kinds: str) -> list[Arm]:
        """This arm's automatic variants: no data cost, no compute, no change."""
        free = {"read": 0.0, "tokenize": 0.0, "pack": 0.0, "transfer": 0.0, "workers": 0, "contended": 0.0}
        changes: dict[str, dict[str, Any]] = {"ideal-data": free, "data-only": {"compute": {}}, "a-a": {}}
        return [self.variant(kind, **changes[kind]) for kind in kinds]


def build(
    arms: list[Arm],
    comparisons: list[tuple[str, str]] = (),
    *,
    blocks: int = 5,
    repetitions: int = 3,
    steps: int = 4,
    seed: int = 0,
    noise: dict[str, float] | None = None,
    interleave: str = "slices",
    status: str = "done",
    spans: bool = True,
) -> tuple[StudyRecord, list[RunData]]:
    """A study of ``arms`` with ``steps`` measured steps (and one warmup step) per repetition.

    ``spans``: False for runs without a spans table, which cannot be replayed. Replays take most of an analysis.
    """
    spread = {**NOISE, **(noise or {})}
    generator = np.random.default_rng(seed)
    runs = []
    for block in range(blocks):
        day = generator.normal(0, spread["day"])  # shared by the arms of a block: pairing must cancel it
        # Neighbours in time share it: pairing by repetition cancels it.
        drift = generator.normal(0, spread["day"] / 2, repetitions)
        for position, arm in enumerate(arms):
            luck = generator.normal(0, spread["block"])
            scale = np.exp(
                day
                + luck
                + drift[:, None]
                + generator.normal(0, spread["repetition"], (repetitions, 1))
                + generator.normal(0, spread["step"], (repetitions, steps + 1))
            )
            record = _record(arm, block, position, interleave)
            if block in arm.failed_blocks:
                record = replace(record, status="failed", error="killed by signal 9", exit_code=-9)
                runs.append(RunData(record, None, None, None))
                continue
            stepped, spanned = _simulate(arm, scale, start=(1 + block) * 10**12 + position * 100 * MS)
            runs.append(
                RunData(
                    record,
                    _table(STEP_COLUMNS, stepped),
                    _table(SPAN_COLUMNS, spanned) if spans else None,
                    _table(SAMPLE_COLUMNS, _samples(arm, stepped["start_ns"])),
                )
            )
    study = StudyRecord(
        scenario="synthetic",
        question="Does the truth come out?",
        status=status,
        created_utc="2025-01-01T00:00:00Z",
        command=["harness", "run", "scenarios/synthetic.yaml"],
        scenario_file="scenarios/synthetic.yaml",
        scenario_text={"name": "synthetic", "probes": {"timeline_steps": 3}},
        interleave=interleave,
        blocks=blocks,
        arms=[ArmRecord(a.name, a.control, a.of, a.declared, a.config) for a in arms],
        comparisons=[ComparisonRecord(baseline, candidate) for baseline, candidate in comparisons],
        environment=dict(ENVIRONMENT),
    )
    return study, runs


def write(folder: StudyFolder, study: StudyRecord, runs: list[RunData]) -> None:
    """Write a study as the launcher would."""
    folder.write_study(study)
    for run in runs:
        folder.write_run(run.record)
        if run.steps is not None:
            tables = [{} if table is None else table.to_pydict() for table in (run.steps, run.spans, run.samples)]
            folder.write_tables(run.record.arm, run.record.block, *tables)
            if run.spans is None:
                (folder.run(run.record.arm, run.record.block) / "spans.parquet").unlink()


def _record(arm: Arm, block: int, position: int, interleave: str) -> RunRecord:
    config = {
        "data": {"workers": arm.workers, "batch_size": 8, "path": "text-padded", "inject": None},
        "compute": {"threads": 2},
        "seed": 0,
    }
    for key, value in {**arm.declared, **arm.config}.items():
        node = config
        *parents, leaf = key.split(".")
        for parent in parents:
            node[parent] = node.get(parent) or {}
            node = node[parent]
        node[leaf] = value
    facts = {
        "device": "Synthetic CPU",
        "device_count": 1,
        "parameters": 1_000_000,
        "flops_per_token": 6e6,
        "threads": 2,
    }
    return RunRecord(
        arm=arm.name,
        block=block,
        status="done",
        control=arm.control,
        of=arm.of,
        session=f"session-{block}" if interleave == "slices" else f"session-{block}-{position}",
        position=position,
        interleave=interleave,
        pid=1000 + 10 * position,
        config=config,
        declared=dict(arm.declared),
        facts=RunFacts.from_json({**facts, **arm.facts}),
        environment={**ENVIRONMENT, **arm.environment},
    )


def _simulate(arm: Arm, scale: np.ndarray, start: int) -> tuple[Columns, Columns]:
    """Run the loop on paper: one serial loader worker at most one batch ahead per step, or everything inline."""
    steps: Columns = {name: [] for name, _ in STEP_COLUMNS}
    spans: list[tuple[Any, ...]] = []
    now, worker_free, pid = start, start, 1000

    def emit(role: str, name: str, batch: int, since: int, until: int) -> None:
        ids = (pid, pid) if role == "main" else (pid + 1, pid + 1)
        on_core = max(0, until - since - round(arm.off_core.get(name, 0.0) * MS))
        spans.append((*ids, role, 0, name, batch, since, until, on_core))

    finished: list[int] = []
    for batch, factor in enumerate(scale.flatten()):
        repetition, index = divmod(batch, scale.shape[1])
        now += 1_000 if index == 0 else 0  # the loop pauses between repetitions
        began = now
        role = f"loader-{batch % arm.workers}" if arm.workers else "main"
        # the worker may start once the batch two before this one has been taken: prefetch of two
        clock = max(worker_free, finished[batch - 2] if batch >= 2 else start) if arm.workers else now
        recorded = []
        for stage, cost in (("read", arm.read), ("tokenize", arm.tokenize), ("pack", arm.pack)):
            until = clock + round(cost * factor * MS)
            if until > clock:
                recorded.append(StageSpan(stage, clock, until))
            clock = until
        worker_free = clock
        received = max(now, clock) + round(arm.transfer * factor * MS)
        emit("main", "fetch", batch, now, received)
        for span in recorded:
            emit(role, span.name, batch, span.start_ns, span.end_ns)
        if not recorded:
            emit(role, "transfer", batch, received, received)
        finished.append(received)
        phases = {"fetch": received - now}
        now = received
        for phase, cost in arm.compute.items():
            more = arm.rare.get(phase, 0.0) if batch % 10 == 6 else 0.0
            phases[phase] = round((cost + more) * factor * MS)
            if phase != "other":
                emit("main", phase, -1, now, now + phases[phase])
            now += phases[phase]
        now += 20_000  # other
        row = {"step": batch, "turn": repetition, "warmup": index == 0, "start_ns": began, "wall_ns": now - began}
        row |= {f"{phase}_ns": phases.get(phase, 0) for phase in PHASES}
        row["other_ns"] = phases.get("other", 0) + 20_000
        row |= {"contended_ns": round(arm.contended * MS)}
        row |= {
            "tokens": arm.tokens,
            "trained_tokens": arm.trained,
            "samples": 8,
            "loss": arm.loss + math.exp(-batch / 50),
        }
        if arm.nan_from is not None and batch >= arm.nan_from:
            row["loss"] = math.nan
        for name, value in row.items():
            steps[name].append(value)
    for name, values in steps.items():
        steps[name] = values or [None] * len(steps["step"])  # no device, nothing measured of one
    columns = zip(*spans, strict=True)
    return steps, {name: list(values) for (name, _), values in zip(SPAN_COLUMNS, columns, strict=True)}


def _samples(arm: Arm, times: list[int]) -> Columns:
    rows = [(t, "host", "other_cpu_cores", arm.other_cpu_cores, "cores") for t in times]
    rows += [(t, "host", "page_cache_bytes", 1e9, "bytes") for t in times]
    return {name: [row[i] for row in rows] for i, (name, _) in enumerate(SAMPLE_COLUMNS)}


def _table(columns: tuple[tuple[str, str], ...], rows: Columns) -> pa.Table:
    return pa.table({name: rows[name] for name, _ in columns}, schema=arrow_schema(columns))


def page_of(report: StudyReport) -> str:
    """The text of summary.md as it would be written, without pictures."""
    return markdown.page(report, first_screen(report), []).markdown


def judged(
    report: StudyReport,
    ratio: Estimate,
    noise_floor: float | None,
    losses: Losses | None = None,
    together: Estimate | None = None,
    doubts: Sequence[Doubt] = (),
    used_lead: tuple[float, float] = (0.0, 0.0),
    same_again: Estimate | None = None,
    in_total: InTotal | None = None,
    repeated: tuple[float, float] | None = None,
) -> StudyReport:
    """``report`` with each comparison's measured ratio, of times as well, replaced, and judged anew."""
    found, steps = (
        judge(
            together or ratio,
            noise_floor,
            learned,
            repeated=repeated,
            doubts=doubts,
            used_lead=used_lead,
            same_again=same_again,
            in_total=None if in_total is None else in_total.least,
        )
        for learned in (losses, None)
    )
    absent: dict[Figure, Absent] = {"noise_floor": Absent("no a-a control")} if noise_floor is None else {}
    changes = {
        "ratio": ratio,
        "step_time": ratio,
        "steps": steps,
        "together": together or ratio,
        "comparisons": 1 if together is None else 7,
        "noise_floor": noise_floor,
        "losses": losses or Losses(),
        "repeated": repeated,
        "used_lead": used_lead,
        "same_again": same_again,
        "in_total": in_total,
        "absent": absent,
        "verdict": found.verdict,
        "resolution": found.resolution,
        "cause": found.cause,
        "doubts": found.doubts,
    }
    return replace(
        report, comparisons=tuple(replace(c, measured=replace(c.measured, **changes)) for c in report.compared)
    )
