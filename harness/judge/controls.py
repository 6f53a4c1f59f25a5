"""Report pairs of arms outside the comparisons: data paths alone, cost of probes, and scaling over ranks.

sample          one row of a batch: ``data.sequence_length`` positions, padding included
cost of probe   step time with it / without it - 1; both alternated, so the ratio is paired
efficiency      ratio of tokens/s / ratio of ranks (1: each rank trains as fast as one alone)
loss            mean over the last tenth of the tokens that every arm of the comparison trained on
time to a loss  seconds of training steps (without pauses between repetitions) until the mean loss over a tenth of
                all tokens first reaches the target: the higher of the two arms' losses above; known only if both
                arms' losses fall to the target by more than their scatter
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import (
    Blocks,
    Rate,
    RepetitionTotals,
    mean_over,
    rates_of,
    speed,
    steps_per_s,
    tokens_per_s,
    trained_tokens_per_s,
)
from harness.explain.spans import column
from harness.explain.statistics import Estimate, estimate, inverse
from harness.judge.comparisons import Controls, Measured, Missing
from harness.judge.policy import LOSS_FALL_ERRORS, LOSS_WINDOW_SHARE, SAME_BATCH_WITHIN
from harness.judge.verdicts import Judged
from harness.judge.waits import waited_over
from harness.scenario.overrides import differing, lookup, lookup_number
from harness.study.contract import ALONE, BARE, LEDGER, PROFILED
from harness.study.records import ArmRecord
from harness.study.run_data import RunData
from trainer.json_types import JsonObject


@dataclass(frozen=True)
class DataPath:
    """One arm's data path, alone (its data-only control) and in training. Ratios above 1: faster than ``baseline``."""

    arm: str
    baseline: str
    sample_ms: Estimate | None = None  # alone; None also for a user's own source, whose rows are unknown
    tokens_per_s: Estimate | None = None  # alone, padding included
    trained_tokens_per_s: Estimate | None = None  # alone
    times: Estimate | None = None  # alone: speed ratio in positions per second
    loop_ms: float | None = None  # alone: step time without fetching the batch
    step_ms: Estimate | None = None  # in training
    waited_ms: float | None = None  # cost of data work per step, in training
    mean_step_ms: float | None = None  # mean step in training, including ``waited_ms``
    training_times: Estimate | None = None
    measure: str = ""  # unit that ``training_times`` counts
    step_time: Estimate | None = None  # step time in training: baseline / arm
    steps: Judged | None = None  # verdict on ``step_time``, by the same rules as every comparison


# Compares (baseline, arm) as the study compares its arms.
Compare = Callable[[str, str], Measured | Missing]


def data_paths(
    scenario: JsonObject, arms: Sequence[str], ledgers: Mapping[str, Blocks], controls: Controls, compared: Compare
) -> tuple[DataPath, ...]:
    """Return each arm's data path, compared with the scenario's ``isolated_baseline`` arm; empty without this key.

    ``compared``: function that compares (baseline, arm) as the study compares its arms."""
    named = scenario.get("isolated_baseline")
    if not isinstance(named, str):
        return ()
    return tuple(_path(arm, _baseline_of(arm, named, arms), ledgers, controls, compared) for arm in arms)


def _baseline_of(arm: str, named: str, arms: Sequence[str]) -> str:
    """Return the arm ``named`` with the matrix values of ``arm``: for ``x@point`` it is ``named@point``.

    Returns ``named`` itself if there is no such arm."""
    _, at, point = arm.partition("@")
    with_point = f"{named}{at}{point}"
    return with_point if with_point in arms else named


def _path(arm: str, baseline: str, ledgers: Mapping[str, Blocks], controls: Controls, compared: Compare) -> DataPath:
    data_only, training = controls.get("data-only", arm), ledgers.get(arm, {})
    comparison = compared(baseline, arm)
    measured = None if isinstance(comparison, Missing) else comparison
    return DataPath(
        arm=arm,
        baseline=baseline,
        sample_ms=_per_block(data_only, _sample_ms(data_only)),
        tokens_per_s=_per_block(data_only, tokens_per_s),
        trained_tokens_per_s=_per_block(data_only, trained_tokens_per_s),
        times=speed(controls.get("data-only", baseline), data_only, tokens_per_s),
        loop_ms=mean_over(
            [run for run in data_only.values() if "fetch" in run.phase_ms],
            lambda run: run.mean_step_ms - run.phase_ms["fetch"],
        ),
        step_ms=_per_block(training, lambda run: (run.wall_ns / 1e6, float(run.steps))),
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
    """Return a function from repetition to (ms, rows), for ms per row; None if rows have no fixed length. Rows of no
    fixed length: with a user's own ``data.source``, or without ``data.sequence_length``. ``alone``: runs of the
    data-only control."""
    config = next((run.record.config for run in alone.values()), {})
    length = lookup_number(config, "data.sequence_length", 0)
    if not length or lookup(config, "data.source") is not None:
        return None

    def rate(repetition: RepetitionTotals) -> tuple[float, float] | None:
        return None if not repetition.tokens else (repetition.wall_ns / 1e6, repetition.tokens / length)

    return rate


SAMPLED = ("host", "nvml")  # probes that run in the sampling process


@dataclass(frozen=True)
class ProbeCost:
    """Cost of probes, from the study's controls: by which share of a step they make steps longer."""

    probes: tuple[str, ...]  # "ledger", "host", ...; several: all probes of a measured run together
    against: Literal["nothing", "ledger"]  # configuration that the probes were added to
    share: Estimate  # added time / step without them (0.01: 1 % longer)
    step_ms: float  # mean step without them

    @property
    def cost_ms(self) -> float:
        return self.share.median * self.step_ms


def is_probe_control(control: str | None) -> bool:
    """Return True if a control exists for the probes: to measure the cost of one, or to run under profilers."""
    return control is not None and (control in (BARE, PROFILED) or control.startswith(ALONE))


def probe_costs(
    arms: Sequence[ArmRecord], ledgers: Mapping[str, Blocks], runs: Sequence[RunData] = ()
) -> list[ProbeCost]:
    """Return the probe costs that the study's controls measured, without probes that failed in one of ``runs``."""
    idle = {run.record.arm for run in runs if _idle(run)}
    return list(_costs(arms, {arm: blocks for arm, blocks in ledgers.items() if arm not in idle}))


def _idle(run: RunData) -> bool:
    """Return True if ``run`` was made to measure one probe's cost, but that probe did not run."""
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
    for parent in dict.fromkeys(parent_arm for parent_arm, control in kinds if control == BARE):
        runs = {control: ledgers.get(name, {}) for (owner, control), name in kinds.items() if owner == parent}
        ledger = runs.pop(LEDGER, {})
        bare = runs.pop(BARE)
        carried = [name for name in SAMPLED if runs.get(f"{ALONE}{name}")]  # Every measured run has these.
        yield from _cost(("ledger",), "nothing", bare, ledger)
        for control, blocks in runs.items():
            if control != PROFILED:
                yield from _cost((control.removeprefix(ALONE),), "ledger", ledger, blocks)
        if carried:
            yield from _cost(("ledger", *carried), "nothing", bare, ledgers.get(parent, {}))


def _cost(
    probes: tuple[str, ...], against: Literal["nothing", "ledger"], without: Blocks, with_it: Blocks
) -> Iterator[ProbeCost]:
    ratio = speed(with_it, without, steps_per_s)  # speed without the probes / speed with them
    step_ms = mean_over(list(without.values()), lambda run: run.mean_step_ms)
    if ratio is not None and step_ms is not None:
        low, high = (None if bound is None else bound - 1 for bound in (ratio.ci_low, ratio.ci_high))
        yield ProbeCost(probes, against, Estimate(ratio.median - 1, low, high, ratio.n), step_ms)


Float = NDArray[np.float64]
# Sections and keys that set the number of ranks and the share of a step that each computes, or that change no step.
OF_RANKS = ("launch", "data.batch_size", "optimizer.accumulation", "compute.threads", "evaluation", "log_every")


@dataclass(frozen=True)
class LossCurve:
    """Loss of one run, as moving means over a tenth of the tokens; arrays have one value per mean."""

    tokens: Float  # tokens trained at the end of each mean
    seconds: Float  # seconds of steps at the end of each mean
    loss: Float
    error: float  # standard error of such a mean, from the differences of neighbouring steps


@dataclass(frozen=True)
class Scaling:
    """Two arms with different numbers of ranks; :func:`scaling` makes it. Pairs: (baseline, candidate)."""

    baseline: str
    candidate: str
    ranks: tuple[int, int]
    speedup: Estimate  # of tokens/s
    weak: bool | None  # True: the global batch grew with the ranks; False: it stayed equal; None: neither, or unknown
    per_step: tuple[float, float] | None = None  # tokens of all ranks
    threads: tuple[int, int] | None = None  # total over ranks, if the host's threads compute
    cores: int | None = None
    losses: tuple[float, float] | None = None  # means over blocks; None: unknown, or they fell too little
    target: float | None = None
    seconds: tuple[float, float] | None = None  # as ``losses``
    differs: tuple[str, ...] = ()  # configuration keys that differ, except ranks and their batch

    @property
    def efficiency(self) -> float:
        """Share of its speed that each rank keeps when the ranks grow (1: all of it)."""
        return self.speedup.median * self.ranks[0] / self.ranks[1]

    @property
    def efficiency_range(self) -> tuple[float, float] | None:
        """Interval of :attr:`efficiency`; None without an interval of the speed."""
        if self.speedup.ci_low is None or self.speedup.ci_high is None:
            return None
        share = self.ranks[0] / self.ranks[1]
        return self.speedup.ci_low * share, self.speedup.ci_high * share


def scaling(
    names: tuple[str, str], runs: tuple[Sequence[RunData], Sequence[RunData]], speedup: Estimate | None
) -> Scaling | None:
    """Return how training scales from the arm with fewer ranks to the other; None for equal ranks or no ``speedup``."""
    ranks = tuple(max((run.record.facts.ranks or 1 for run in arm), default=1) for arm in runs)
    attached = any(run.record.facts.attached is not None for arm in runs for run in arm)
    if speedup is None or ranks[0] == ranks[1] or attached:
        return None
    if ranks[1] < ranks[0]:
        return scaling((names[1], names[0]), (runs[1], runs[0]), inverse(speedup))
    curves = [{run.record.block: columns for run in arm if (columns := _steps(run)) is not None} for arm in runs]
    shared = sorted(set(curves[0]) & set(curves[1]))
    steps = [(curves[0][block], curves[1][block]) for block in shared]
    per_step = _tokens_per_step(runs)
    facts = [arm[0].record.facts for arm in runs]
    threads = None
    if facts[0].threads and facts[1].threads and not (facts[0].asynchronous or facts[1].asynchronous):
        threads = facts[0].threads * ranks[0], facts[1].threads * ranks[1]
    weak = None if per_step is None else _is_weak(per_step[1] / per_step[0], ranks[1] / ranks[0])
    cores = facts[1].cores and facts[1].cores * (facts[1].nodes or 1)
    result = Scaling(*names, (ranks[0], ranks[1]), speedup, weak, per_step, threads, cores, differs=_other_keys(runs))
    blocks = [pair_of_curves for pair in steps if (pair_of_curves := _curves(*pair)) is not None]
    if not blocks:
        return result
    reached, fallen = [], True
    for pair_of_curves in blocks:
        ends = [float(curve.loss[-1]) for curve in pair_of_curves]
        fallen &= all(float(curve.loss[0]) - max(ends) > LOSS_FALL_ERRORS * curve.error for curve in pair_of_curves)
        reached.append(
            (*ends, max(ends), *(float(curve.seconds[np.argmax(curve.loss <= max(ends))]) for curve in pair_of_curves))
        )
    losses, target, seconds = np.split(np.mean(reached, axis=0), (2, 3))
    result = replace(result, losses=(float(losses[0]), float(losses[1])))
    return (
        replace(result, target=float(target[0]), seconds=(float(seconds[0]), float(seconds[1]))) if fallen else result
    )


def _other_keys(runs: tuple[Sequence[RunData], Sequence[RunData]]) -> tuple[str, ...]:
    """Return the configuration keys in which the arms differ, except ranks and their batch."""
    keys = differing(*(arm[0].record.config for arm in runs))
    return tuple(
        sorted(key for key in keys if not any(key == prefix or key.startswith(f"{prefix}.") for prefix in OF_RANKS))
    )


def _tokens_per_step(runs: tuple[Sequence[RunData], Sequence[RunData]]) -> tuple[float, float] | None:
    """Return mean tokens per step over all ranks and steps, by arm; None if they were not counted."""
    means = []
    for arm in runs:
        tables = [table for run in arm if (table := run.step_columns(["tokens"])) is not None and len(table)]
        counts = np.concatenate([column(table, "tokens") for table in tables]) if tables else np.full(1, np.nan)
        means.append(float(counts.mean()))
    return (means[0], means[1]) if all(np.isfinite(mean) and mean > 0 for mean in means) else None


def _is_weak(batch: float, ranks: float) -> bool | None:
    """True if the global batch grew as the ranks did, False if equal, else None. Ratios candidate / baseline."""
    if abs(batch / ranks - 1) <= SAME_BATCH_WITHIN:
        return True
    return False if abs(batch - 1) <= SAME_BATCH_WITHIN else None


def _steps(run: RunData) -> tuple[Float, Float, Float] | None:
    """Return (tokens, seconds, loss), each an array with one value per step, warm-up steps included.

    None if the run did not finish, or if any value is unknown or any loss is not finite."""
    if run.record.status != "done":
        return None
    table = run.step_columns(["tokens", "wall_ns", "loss"])
    if table is None or not len(table):
        return None
    tokens, wall, loss = (column(table, name) for name in ("tokens", "wall_ns", "loss"))
    if np.isnan(tokens).any() or np.isnan(wall).any() or not np.isfinite(loss).all():
        return None
    return tokens, wall / 1e9, loss


def _curves(one: tuple[Float, Float, Float], other: tuple[Float, Float, Float]) -> tuple[LossCurve, LossCurve] | None:
    """Return the loss curves of two runs, up to the tokens that both trained on; None if either is too short."""
    tokens_max = min(one[0].sum(), other[0].sum())
    curves = [_curve(*steps, tokens_max) for steps in (one, other)]
    return (curves[0], curves[1]) if curves[0] is not None and curves[1] is not None else None


def _curve(tokens: Float, seconds: Float, loss: Float, most: float) -> LossCurve | None:
    reached = np.cumsum(tokens)
    until = int(np.searchsorted(reached, most, side="right"))
    width = max(1, round(LOSS_WINDOW_SHARE * most / tokens.mean()))
    if until < width:
        return None
    sums = np.concatenate([[0.0], np.cumsum(loss[:until])])
    means = (sums[width:] - sums[:-width]) / width
    differences = np.diff(loss[:until])
    error = (
        float(np.sqrt(np.mean((differences - differences.mean()) ** 2) / 2 / width)) if len(differences) > 1 else 0.0
    )
    return LossCurve(reached[width - 1 : until], np.cumsum(seconds)[width - 1 : until], means, error)
