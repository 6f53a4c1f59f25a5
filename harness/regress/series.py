"""Condenses an arm of a study to a few numbers a block: what a baseline file holds and `harness compare` compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from harness.explain.ledger import Blocks, mean_over, measure
from harness.judge.confounds import alike_environment, useful_fraction
from harness.judge.losses import loss_of
from harness.judge.probes.device_health import device_health
from harness.judge.unseen import waiting_share
from harness.regress.policy import MS_DIGITS
from harness.regress.rounds import STEP, rounds, typical_log
from harness.scenario.overrides import flatten
from harness.study.contract import PHASES, STAGES
from harness.study.names import FolderName
from harness.study.records import StudyRecord
from harness.study.run_data import RunData
from harness.study.run_facts import RunFacts, RunFactsField
from trainer.errors import InputError
from trainer.json_types import JsonObject, section

KEPT = (
    "a-a",
    "ideal-data",
    "data-only",
)  # controls that are figures of their own, and the A/A control, which gives the noise
# Of the environment: another machine, or one that is set otherwise.
MACHINE = ("cpu", "cores", "cpu_quota_cores", "cpu_governor", "cpu_turbo", "nvidia_driver", "memory_bytes")
# Facts of a run that say what it ran on and what it did.
FACTS = (
    "device", "device_count", "emulated", "threads", "parameters", "tokenizer_fingerprint", "corpus_fingerprint",
    "model_fingerprint",
)  # fmt: skip


@dataclass(frozen=True)
class BlockSeries:
    """Typical values of every finished block: milliseconds per step by part (the step, phases, stages), and so on.

    ``twin_logs``: log of the A/A control's step time / its own, one a block; empty without one (baseline files in git
    have the name).
    """

    scenario: FolderName
    arm: FolderName
    created_utc: str
    blocks: list[int]
    part_ms: dict[str, list[float]]
    twin_logs: list[float] = field(default_factory=list)
    peak_memory_bytes: list[int] = field(default_factory=list)
    startup_ms: list[float] = field(default_factory=list)
    config: JsonObject = field(default_factory=dict)  # dotted keys; the first block's
    environment: JsonObject = field(default_factory=dict)
    facts: RunFactsField = field(default_factory=RunFacts)
    useful_fraction: float | None = None
    sm_clock_mhz: float | None = None
    other_cpu_cores: float | None = None
    failed_runs: int = 0
    interleave: str = "runs"
    arms: int | None = None  # of the study, controls among them: what is alive together shares caches and memory
    probes: JsonObject = field(default_factory=dict)  # dotted keys
    loss: float | None = None  # median over blocks, of the last measured steps
    diverged_runs: int = 0
    waiting_share: float | None = None  # of a program of others: share of the time that its main thread had no core
    started: str = "together"  # or one by one, where startup is what is judged

    @property
    def emulated(self) -> bool:
        return bool(self.facts.emulated)


def series_of(study: StudyRecord, runs: Sequence[RunData]) -> dict[str, BlockSeries]:
    """Every arm of a study that finished a block, by name, with the controls that are figures of their own."""
    by_arm: dict[str, dict[int, RunData]] = {}
    for run in runs:
        if run.record.control is None or run.record.control in KEPT:
            by_arm.setdefault(run.record.arm, {})[run.record.block] = run
    found = {}
    for arm, group in by_arm.items():
        control = next((b for b in by_arm.values() if _aa_control_of(b) == arm), {})
        one = None if _aa_control_of(group) else _series(study, arm, group, control)
        if one is not None:
            found[arm] = one
    return found


def _aa_control_of(group: Mapping[int, RunData]) -> str | None:
    record = next(iter(group.values())).record
    return record.of if record.control == "a-a" else None


def _series(
    study: StudyRecord, arm: str, group: Mapping[int, RunData], control: Mapping[int, RunData]
) -> BlockSeries | None:
    found = {block: one for block, run in sorted(group.items()) if (one := rounds(run)) is not None}
    ledgers: Blocks = {block: ledger for block, run in group.items() if (ledger := measure(run)) is not None}
    if not found:
        return None
    controls = {block: one for block, run in control.items() if (one := rounds(run)) is not None}
    records = [group[block].record for block in found]
    names = [part for part in (STEP, *PHASES, *STAGES) if all(part in one.parts for one in found.values())]
    clocks = [card.sm_clock_mhz for card in device_health({arm: list(group.values())}) if card.sm_clock_mhz]
    first = records[0]
    for record in records:
        differs = [
            key
            for key, value in first.environment.items()
            if not alike_environment(key, record.environment.get(key), value)
        ]
        if differs:
            raise InputError(
                f"{study.scenario}: {arm}: block {record.block} ran in another environment than block {first.block} "
                f"({', '.join(differs)}): no figures of one state"
            )
    return BlockSeries(
        scenario=study.scenario,
        arm=arm,
        created_utc=study.created_utc,
        blocks=list(found),
        part_ms={part: [round(one.typical_ms(part) or 0.0, MS_DIGITS) for one in found.values()] for part in names},
        twin_logs=[
            round(log, MS_DIGITS)
            for block in found
            if block in controls and (log := typical_log(found[block], controls[block])) is not None
        ],
        peak_memory_bytes=[record.peak_memory_bytes for record in records if record.peak_memory_bytes],
        startup_ms=[round(record.startup_ns / 1e6, 1) for record in records if record.startup_ns],
        config={key: value for key, value in flatten(first.config).items() if key != "seed"},
        environment=dict(first.environment),
        facts=first.facts.only(FACTS),
        useful_fraction=useful_fraction(ledgers),
        sm_clock_mhz=median(clocks) if clocks else None,
        other_cpu_cores=mean_over(list(ledgers.values()), lambda ledger: ledger.other_cpu_cores),
        failed_runs=sum(run.record.status == "failed" for run in group.values()),
        interleave=first.interleave,
        arms=len(study.arms) or None,
        probes=flatten(section(study.scenario_text, "probes")),
        loss=loss_of(list(ledgers.values())),
        diverged_runs=sum(ledger.diverged for ledger in ledgers.values()),
        waiting_share=waiting_share([record.facts for record in records]),
        started="one by one" if any(one.contest is not None for one in study.arms) else "together",
    )
