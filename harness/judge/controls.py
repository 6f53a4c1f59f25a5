"""Reports what controls show by themselves: each arm's data path alone, and what the probes cost.

A sample is one row of a batch: ``data.sequence_length`` positions, padding included. The cost of a probe is the step
time with it / without it, minus 1. Both alternated, so the ratio is paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.explain.ledger import (
    Blocks,
    Rate,
    RepetitionTotals,
    RunLedger,
    mean_over,
    rates_of,
    speed,
    steps_per_s,
    tokens_per_s,
    trained_tokens_per_s,
)
from harness.explain.statistics import Estimate, estimate
from harness.judge.comparisons import Controls, Measured, Missing
from harness.judge.verdicts import Judged
from harness.judge.waits import waited_over
from harness.scenario.overrides import lookup, lookup_number
from harness.study.contract import ALONE, BARE, LEDGER, PROFILED
from harness.study.records import ArmRecord
from harness.study.run_data import RunData
from trainer.json_types import JsonObject


@dataclass(frozen=True)
class DataPath:
    """One arm's data path. None: not measured. Ratios say how many times as fast as ``baseline``, above 1 is faster."""

    arm: str
    baseline: str
    sample_ms: Estimate | None = None  # alone; None also of a source of the user's own, whose rows nobody knows
    tokens_per_s: Estimate | None = None  # alone, padding included
    trained_tokens_per_s: Estimate | None = None  # alone
    times: Estimate | None = None  # alone: in positions per second
    loop_ms: float | None = None  # alone: of a step, what is not fetching its batch
    step_ms: Estimate | None = None  # in training
    waited_ms: float | None = None  # in training: what data work costs a step
    mean_step_ms: float | None = None  # mean step in training, including ``waited_ms``
    training_times: Estimate | None = None
    measure: str = ""  # what ``training_times`` counts
    step_time: Estimate | None = None  # step time in training: baseline / arm
    steps: Judged | None = None  # verdict on ``step_time``, by the same rules as every comparison of the study


# Compares an arm with a baseline, (baseline, arm), as the study compares its arms.
Compare = Callable[[str, str], Measured | Missing]


def data_paths(
    scenario: JsonObject, arms: Sequence[str], ledgers: Mapping[str, Blocks], controls: Controls, compared: Compare
) -> tuple[DataPath, ...]:
    """One for each of ``arms`` (no controls), where ``scenario`` has an ``isolated_baseline``."""
    named = scenario.get("isolated_baseline")
    if not isinstance(named, str):
        return ()
    return tuple(_path(arm, _baseline_of(arm, named, arms), ledgers, controls, compared) for arm in arms)


def _baseline_of(arm: str, named: str, arms: Sequence[str]) -> str:
    """The arm ``named`` at the matrix point of ``arm``; itself where it names a point."""
    _, at, point = arm.partition("@")
    same = f"{named}{at}{point}"
    return same if same in arms else named


def _path(arm: str, baseline: str, ledgers: Mapping[str, Blocks], controls: Controls, compared: Compare) -> DataPath:
    alone, training = controls.get("data-only", arm), ledgers.get(arm, {})
    found = compared(baseline, arm)
    measured = None if isinstance(found, Missing) else found
    return DataPath(
        arm=arm,
        baseline=baseline,
        sample_ms=_per_block(alone, _sample_ms(alone)),
        tokens_per_s=_per_block(alone, tokens_per_s),
        trained_tokens_per_s=_per_block(alone, trained_tokens_per_s),
        times=speed(controls.get("data-only", baseline), alone, tokens_per_s),
        loop_ms=mean_over(list(alone.values()), _loop_ms),
        step_ms=_per_block(training, lambda one: (one.wall_ns / 1e6, float(one.steps))),
        waited_ms=waited_over(list(training.values())),
        mean_step_ms=mean_over(list(training.values()), lambda run: run.mean_step_ms),
        training_times=None if measured is None else measured.figure,
        measure="" if measured is None else measured.measure,
        step_time=None if measured is None else measured.step_time,
        steps=None if measured is None else measured.steps,
    )


def _per_block(blocks: Blocks, rate: Rate | None) -> Estimate | None:
    values = None if rate is None else rates_of(blocks, rate)
    return None if values is None else estimate(values)


def _sample_ms(alone: Blocks) -> Rate | None:
    """Milliseconds per row: what a row holds, the run's configuration says."""
    config = next((run.record.config for run in alone.values()), {})
    length = lookup_number(config, "data.sequence_length", 0)
    if not length or lookup(config, "data.source") is not None:
        return None

    def rate(repetition: RepetitionTotals) -> tuple[float, float] | None:
        return None if not repetition.tokens else (repetition.wall_ns / 1e6, repetition.tokens / length)

    return rate


def _loop_ms(run: RunLedger) -> float | None:
    fetch = run.phase_ms.get("fetch")
    return None if fetch is None else run.mean_step_ms - fetch


SAMPLED = ("host", "nvml")  # by the sampling process


@dataclass(frozen=True)
class ProbeCost:
    """``share``: of the step without it (0.01: 1 % longer). ``step_ms``: that step, in milliseconds."""

    probes: tuple[str, ...]  # "ledger", "host", ...; several: all that a measured run carries, together
    against: Literal["nothing", "ledger"]  # what they were added to
    share: Estimate
    step_ms: float

    @property
    def cost_ms(self) -> float:
        return self.share.median * self.step_ms


def is_probe_control(control: str | None) -> bool:
    """Whether a control is there for the probes: to measure their cost, or to be profiled."""
    return control is not None and (control in (BARE, PROFILED) or control.startswith(ALONE))


def probe_costs(
    arms: Sequence[ArmRecord], ledgers: Mapping[str, Blocks], runs: Sequence[RunData] = ()
) -> list[ProbeCost]:
    """The costs that the study's controls measured; ``arms`` as in study.json, ``ledgers`` of finished runs by arm.

    A probe that did not run in one of ``runs`` has no cost: it is left out, and the report says why it did not.
    """
    idle = {run.record.arm for run in runs if _idle(run)}
    return list(_costs(arms, {arm: blocks for arm, blocks in ledgers.items() if arm not in idle}))


def _idle(run: RunData) -> bool:
    """Whether ``run`` measures one probe's cost, but that probe did not run."""
    control = run.record.control or ""
    if run.record.status != "done" or not control.startswith(ALONE) or control == LEDGER:
        return False
    probe = control.removeprefix(ALONE)
    if probe in SAMPLED:
        return not run.probes.taken_samples.get(probe)
    return probe in run.probes.failed


def _costs(arms: Sequence[ArmRecord], ledgers: Mapping[str, Blocks]) -> Iterator[ProbeCost]:
    kinds = {
        (arm.of, arm.control): arm.name for arm in arms if arm.of and arm.control and is_probe_control(arm.control)
    }
    for of in dict.fromkeys(of for of, control in kinds if control == BARE):
        runs = {control: ledgers.get(name, {}) for (owner, control), name in kinds.items() if owner == of}
        ledger = runs.pop(LEDGER, {})
        bare = runs.pop(BARE)
        carried = [name for name in SAMPLED if runs.get(f"{ALONE}{name}")]  # by every measured run, besides the ledger
        yield from _cost(("ledger",), "nothing", bare, ledger)
        for control, blocks in runs.items():
            if control != PROFILED:
                yield from _cost((control.removeprefix(ALONE),), "ledger", ledger, blocks)
        if carried:
            yield from _cost(("ledger", *carried), "nothing", bare, ledgers.get(of, {}))


def _cost(
    probes: tuple[str, ...], against: Literal["nothing", "ledger"], without: Blocks, with_it: Blocks
) -> Iterator[ProbeCost]:
    ratio = speed(with_it, without, steps_per_s)  # how many times as fast without it
    step_ms = mean_over(list(without.values()), lambda run: run.mean_step_ms)
    if ratio is not None and step_ms is not None:
        low, high = (None if bound is None else bound - 1 for bound in (ratio.ci_low, ratio.ci_high))
        yield ProbeCost(probes, against, Estimate(ratio.median - 1, low, high, ratio.n), step_ms)
