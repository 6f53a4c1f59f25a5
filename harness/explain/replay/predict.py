"""Predicts step time and throughput by replay, with an interval, the waits behind them, and a validation error.

Every run is replayed by itself, with steps drawn from its own, so a prediction has one value per block. If loader
workers fill their queue while the loop evaluates, and no edit changes the loader, the recorded order is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from harness.explain.lead_use import MadeBy, SlowWorker, slow_worker
from harness.explain.policy import BATCHES_AHEAD_MAX, CONFIDENCE, MIN_BLOCKS, PREDICTED_STEPS_MAX, PREDICTION_REPLICATES
from harness.explain.replay.attribution import PathLink, PathTime, Removal, critical_path_ms, removals, widened_removals
from harness.explain.replay.batches import RecordedBatches
from harness.explain.replay.costs import Stretch, stretch
from harness.explain.replay.pipeline import build, in_order, tokens_per_step
from harness.explain.replay.prediction import Assumption, Prediction, ReplayValidation, assumptions, widened
from harness.explain.replay.recording import READINGS, Recording, ReplayError, record
from harness.explain.replay.simulate import Make, Simulated, consistent, simulate, spread_offsets
from harness.explain.statistics import Estimate, from_blocks, holding, inverse
from harness.scenario.edits import Edits
from harness.study.contract import STAGES
from harness.study.run_data import RunData

__all__ = ["Prediction", "ReplayValidation", "Replays", "predict", "replace_data", "unedited_error"]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Run:
    """One run with its unedited replay, the basis of every prediction about it."""

    recording: Recording
    offsets: Array  # (replicates, 1) start positions of the replicates
    error: float
    before: Simulated
    then: Stretch  # contention as recorded
    in_order: Simulated | None  # replay in the recorded order; None if predictions draw steps


@dataclass(frozen=True)
class _Edited:
    """One run with its edited replay. ``before``, ``after``: replays without and with the edits."""

    run: _Run
    before: Simulated
    after: Simulated
    drawn: Simulated | None  # ``after`` from drawn steps; its scatter gives the interval if few blocks keep order
    tokens: float | None  # tokens per step of all ranks


class Replays:
    """Replays of the runs of one arm (one run per block), which predict their step time under edits."""

    def __init__(self, runs: Sequence[RunData], replicates: int = PREDICTION_REPLICATES) -> None:
        """Replay ``runs`` without edits. ReplayError if none of them can be replayed."""
        self._replicates = replicates
        by_run = [_replayed(run, recording, replicates) for run, recording in _recordings(runs)]
        self._runs = [readings["likely"] for readings in by_run]
        # Runs under each of READINGS, "likely" first. Where a run has none, it uses "likely".
        self._of_reading = {
            name: [readings.get(name, readings["likely"]) for readings in by_run]
            for name in READINGS
            if any(name in readings for readings in by_run)
        }
        self._by_reading = list(self._of_reading.values())

    def recorded(self, key: str) -> float:
        """Return the recorded value of the edit ``key``, such as "workers"; 1 for "device" (a factor) and "ranks"."""
        first = self._runs[0].recording
        return 1.0 if key in ("device", "ranks") else float(getattr(first, key))

    @property
    def workers(self) -> int:
        """Recorded number of loader workers; 0: inline."""
        return self._runs[0].recording.workers

    @property
    def busy_workers(self) -> int:
        """Number of workers that made batches, the maximum over runs; 0: inline."""
        return max(run.recording.busy_workers for run in self._runs)

    @property
    def unequal(self) -> bool:
        """True if one worker made far more batches than an equal share.

        Replay then cannot predict other numbers of workers."""
        return any(run.recording.batches.makers.unequal for run in self._runs)

    @property
    def slow_worker(self) -> SlowWorker | None:
        """Worker that was slower than the others in all runs; None if there is none.

        With such a worker, replay cannot predict other numbers of workers."""
        return slow_worker(_made_by(run.recording.batches) for run in self._runs)

    @property
    def tokenizes(self) -> bool:
        """True if the runs spent time on tokenizing while making batches."""
        return any(bool(run.recording.batches.stage["tokenize"].any()) for run in self._runs)

    @property
    def validation(self) -> ReplayValidation:
        """Errors of the unedited replays against the measured steps, by block."""
        return _validation([replace(run, before=run.in_order or run.before) for run in self._runs])

    def has_cores_for(self, workers: int) -> bool:
        """True if the main thread and ``workers`` workers have a core each.

        True too if the workers' CPU time fits on the cores that the main thread leaves."""
        first = self._runs[0].recording
        wall_ns, cpu_ns = _making_ns([run.recording.batches for run in self._runs])
        return workers < first.cores or workers * cpu_ns < (first.cores - 1) * wall_ns

    def off_core_ms(self, without: Sequence[str] = ()) -> float:
        """Return the ms per step that stages spent off a core, mean over the runs. ``without``: stages left out."""
        by_run = [run.recording.off_core_ms for run in self._runs]
        return sum(spent for stages in by_run for name, spent in stages.items() if name not in without) / len(by_run)

    @property
    def usual_handover_ms(self) -> float:
        """Assumed cost in ms of handing a batch over if no worker was recorded."""
        return self._runs[0].recording.usual_handover_ms

    def predict(self, edits: Edits) -> Prediction:
        """Predict the step time under ``edits``, over all READINGS. Raises ReplayError: too many batches in flight."""
        likely, *others = (self._predicted(runs, edits) for runs in self._by_reading)
        if self._side_by_side(edits, likely.step_ms.median):
            likely = replace(likely, assumptions=(*likely.assumptions, Assumption("side by side")))
        return widened(likely, others)

    def _side_by_side(self, edits: Edits, step_ms: float) -> bool:
        """True if ``step_ms`` (ms) is only possible if workers' waits off a core overlap in time.

        With fewer workers than recorded, waits of over half a step suffice."""
        waited_ms = self.off_core_ms([name for name, edit in edits.stages.items() if edit.removes])
        workers, busy = _either(edits.workers, self.busy_workers), self.busy_workers
        return (workers > 1 and waited_ms > step_ms) or (workers < busy > 1 and waited_ms > step_ms / 2)

    def _predicted(self, runs: Sequence[_Run], edits: Edits) -> Prediction:
        edited_runs = []
        for run in runs:
            ahead = _either(edits.workers, run.recording.workers) * _either(edits.prefetch, run.recording.prefetch)
            if ahead > BATCHES_AHEAD_MAX:
                raise ReplayError(
                    "too far ahead", f"replay: workers x prefetch is {ahead}; at most {BATCHES_AHEAD_MAX}"
                )
            offsets = spread_offsets(run.recording.block, self._replicates, edits.ranks or 1)
            makes = (partial(build, run.recording, edits, run.then), partial(in_order, run.recording, edits, run.then))
            kept = _keeps_order(run.recording, edits)
            tokens = tokens_per_step(run.recording, edits)
            edited_runs.append(_edited(run, makes, offsets, run.then, tokens, kept=kept, few=len(runs) < MIN_BLOCKS))
        return _prediction(edited_runs, edits, tuple(assumptions(self._runs[0].recording, edits)))

    def fed_by(self, data_runs: Sequence[RunData]) -> Prediction:
        """Return the predicted step time if each run had been fed by the loader of the data run of its block.

        Raises ReplayError if no block has runs of both kinds."""
        feeders = {feeder.block: feeder for _, feeder in _recordings(data_runs)}
        readings = {block: {"likely": feeder, **feeder.all_readings} for block, feeder in feeders.items()}
        likely, *others = (
            self._fed(
                self._of_reading.get(name, self._runs),
                {block: by_reading.get(name, by_reading["likely"]) for block, by_reading in readings.items()},
            )
            for name in READINGS
            if name in self._of_reading or any(name in by_reading for by_reading in readings.values())
        )
        return widened(likely, others)

    def _fed(self, runs: Sequence[_Run], feeders: Mapping[int, Recording]) -> Prediction:
        edited_runs = []
        for run in runs:
            recording, feeder = run.recording, feeders.get(run.recording.block)
            if feeder is None:
                continue
            fed = replace(recording, batches=feeder.batches, workers=feeder.workers, prefetch=feeder.prefetch)
            then = Stretch(run.then.main, _as_it_was(feeder, run.offsets)[1].worker)
            grown = feeder.batch_size / recording.batch_size
            makes = (partial(build, fed, Edits(), then, grown=grown), partial(in_order, fed, Edits(), then))
            loader = Edits(workers=feeder.workers, prefetch=feeder.prefetch, batch_size=feeder.batch_size)
            kept, few = _keeps_order(recording, loader), len(runs) < MIN_BLOCKS
            tokens = None
            if recording.tokens is not None and recording.tokens_per_batch and feeder.tokens_per_batch is not None:
                tokens = recording.tokens * feeder.tokens_per_batch / recording.tokens_per_batch
            edited_runs.append(_edited(run, makes, run.offsets, then, tokens, kept=kept, few=few))
        if not edited_runs:
            raise ReplayError(
                "no shared block", "replay: no block has both a finished run and a finished data-only run"
            )
        recording = edited_runs[0].run.recording
        feeder = feeders[recording.block]
        fed_first = replace(recording, batches=feeder.batches, workers=feeder.workers)
        return _prediction(edited_runs, Edits(), (Assumption("loader alone"), *assumptions(fed_first, Edits())))

    def removals(self) -> tuple[Removal, ...]:
        """Return the saving by removal of each stage, phase, kernel and cause (such as "data"), the largest first."""
        likely, *others = (removals([(run.recording, run.then) for run in runs]) for runs in self._by_reading)
        return widened_removals(likely, others)

    def critical_path_ms(self) -> dict[PathLink, PathTime]:
        """Return the ms per step by link of the critical path, means over the runs, the longest first."""
        likely, *others = (_mean_path([run.recording for run in runs]) for runs in self._by_reading)
        links = dict.fromkeys(link for path in (likely, *others) for link in path)
        times = {}
        for link in links:
            values_ms = [path.get(link, 0.0) for path in (likely, *others)]
            times[link] = PathTime(values_ms[0], min(values_ms), max(values_ms))
        return dict(sorted(times.items(), key=lambda item: (-item[1].likely_ms, -item[1].most_ms)))


def _mean_path(recordings: Sequence[Recording]) -> dict[PathLink, float]:
    paths = [critical_path_ms(recording) for recording in recordings]
    links = dict.fromkeys(link for path in paths for link in path)
    return {link: sum(path.get(link, 0.0) for path in paths) / len(paths) for link in links}


def _replayed(run: RunData, recording: Recording, replicates: int) -> Mapping[str, _Run]:
    """Return {reading: unedited replay of ``run``}, under each of READINGS that applies to it; cached with the run."""

    def replay() -> Mapping[str, _Run]:
        offsets = spread_offsets(recording.block, replicates, 1)
        error = _error_of(run, recording)
        readings = {"likely": recording, **recording.all_readings}
        return {
            name: _Run(reading, offsets, error, *_as_it_was(reading, offsets), _in_order(reading))
            for name, reading in readings.items()
        }

    return run.once(f"replayed {replicates} times", replay)


def _keeps_order(recording: Recording, edits: Edits) -> bool:
    """True if the recorded order of steps may be kept: one rank, and workers, prefetch and batch size as recorded."""
    return (
        (edits.ranks or 1) == 1
        and _either(edits.batch_size, recording.batch_size) == recording.batch_size
        and _either(edits.workers, recording.workers) == recording.workers
        and _either(edits.prefetch, recording.prefetch) == recording.prefetch
    )


def _in_order(recording: Recording) -> Simulated | None:
    """Return the replay in the recorded order, if workers fill their queue during other work (such as an evaluation).

    None if they do not, or for a run of over PREDICTED_STEPS_MAX measured steps: predictions then draw steps."""
    if not recording.fills_its_queue or np.count_nonzero(recording.measured) > PREDICTED_STEPS_MAX:
        return None
    return simulate(in_order(recording, Edits()), np.zeros((1, 1)))


def _edited(
    run: _Run, makes: tuple[Make, Make], offsets: Array, then: Stretch, tokens: float | None, *, kept: bool, few: bool
) -> _Edited:
    """Return ``run`` with its edited replay.

    ``makes``: two functions that build the pipeline: of drawn steps, and in the recorded order. ``offsets``: start
    positions of the replicates. ``then``: contention as recorded. ``tokens``: per step, of all ranks. ``kept``: True if
    the edits allow the recorded order. ``few``: True if there are too few blocks for an interval, which then comes from
    drawn steps.
    """
    drawn, ordered = makes
    before = run.in_order if kept else None
    scattered = consistent([drawn], offsets, then)[0] if before is None or few else None
    if before is None:
        assert scattered is not None
        return _Edited(run, run.before, scattered, None, tokens)
    return _Edited(run, before, consistent([ordered], np.zeros((1, 1)), then)[0], scattered, tokens)


def unedited_error(run: RunData) -> float:
    """Return replayed / measured step time - 1, in the recorded order. Raises ReplayError if it cannot be replayed."""
    return _error_of(run, record(run))


def predict(runs: Sequence[RunData], edits: Edits) -> Prediction:
    """Return the predicted step time of ``runs`` (one arm, one run per block) under ``edits``; see :class:`Replays`."""
    return Replays(runs).predict(edits)


def replace_data(runs: Sequence[RunData], data_runs: Sequence[RunData]) -> Prediction:
    """Return the step time of ``runs`` if the loader of ``data_runs`` had fed them; see :meth:`Replays.fed_by`."""
    return Replays(runs).fed_by(data_runs)


def _recordings(runs: Sequence[RunData]) -> list[tuple[RunData, Recording]]:
    """Return the replayable runs and their recordings, by block. Raises ReplayError (the first reason) if none is."""
    recordings, refusals = [], []
    for run in sorted(runs, key=lambda run: run.record.block):
        try:
            recordings.append((run, record(run)))
        except ReplayError as refusal:
            refusals.append(refusal)
    if not recordings and not refusals:
        raise ReplayError("no run", "replay: no run of this arm")
    if not recordings:
        raise ReplayError(refusals[0].gap, f"replay: {refusals[0]}")
    return recordings


def _error_of(run: RunData, recording: Recording) -> float:
    return run.once("replay error", lambda: _error(recording))


def _error(recording: Recording) -> float:
    """Return replayed / measured step time - 1 over the steps of an exact replay, of a long run its beginning."""
    pipeline = build(recording, Edits(), exact=True)
    alone = simulate(pipeline, np.zeros((1, 1)))
    covered = recording.wall_ns[: len(pipeline.measured)][pipeline.measured]
    return float(alone.step_ms[0]) * 1e6 / float(covered.mean()) - 1


def _made_by(batches: RecordedBatches) -> MadeBy:
    chosen = batches.usable & np.isin(batches.makers.worker, range(batches.makers.workers))
    return MadeBy(batches.makers.worker[chosen], np.sum([*batches.stage.values()], axis=0)[chosen] / 1e6)


def _making_ns(made: Sequence[RecordedBatches]) -> tuple[float, float]:
    """Return wall and CPU time in ns of all stages, summed over usable batches (see :class:`RecordedBatches`)."""
    wall = sum(float(values[batches.usable].sum()) for batches in made for values in batches.stage.values())
    return wall, sum(float(values[batches.usable].sum()) for batches in made for values in batches.cpu.values())


def _either(edited: int | None, recorded: int) -> int:
    return recorded if edited is None else edited


def _as_it_was(recording: Recording, offsets: Array) -> tuple[Simulated, Stretch]:
    """Return the unedited replay of drawn steps, and the contention at its step time.

    ``offsets`` (replicates, 1): start positions of the draws, from 0 to below 1."""
    pipeline = build(recording, Edits())
    result = simulate(pipeline, offsets)
    return result, stretch(pipeline.demand, float(result.step_ms.mean()) * 1e6)


def _prediction(found: Sequence[_Edited], edits: Edits, assumed: tuple[Assumption, ...]) -> Prediction:
    """Return the prediction from one replay per block.

    Its intervals also include the figures scaled by measured / unedited replayed step time."""

    def over_blocks(value: Callable[[_Edited, Array], Array]) -> Estimate:
        as_replayed = over(lambda edited: value(edited, edited.after.step_ms))
        corrected = over(
            lambda edited: value(
                edited, edited.after.step_ms * edited.run.recording.measured_ms / edited.before.step_ms.mean()
            )
        )
        return holding(as_replayed, [corrected])

    def over(value: Callable[[_Edited], Array]) -> Estimate:
        """Return the estimate over blocks, from one array of replicates per block."""
        result = from_blocks([math.log(value(edited).mean()) for edited in found])
        assert result is not None
        if len(found) >= MIN_BLOCKS:
            return result
        arrays = [value(edited if edited.drawn is None else replace(edited, after=edited.drawn)) for edited in found]
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(np.concatenate(arrays), [tail, 1 - tail])
        return Estimate(result.median, min(float(low), result.median), max(float(high), result.median), result.n)

    counted = all(edited.tokens for edited in found)  # a count of 0 means that tokens were not counted
    measured = from_blocks([math.log(edited.run.recording.measured_ms) for edited in found])
    assert measured is not None
    ratio = over_blocks(lambda edited, step_ms: step_ms / edited.run.recording.measured_ms)
    return Prediction(
        edits=edits,
        step_ms=over_blocks(lambda _, step_ms: step_ms),
        tokens_per_s=over_blocks(lambda edited, step_ms: (edited.tokens or 0.0) * 1e3 / step_ms) if counted else None,
        measured_ms=measured,
        ratio=ratio,
        speedup=inverse(ratio),
        interval_from="blocks" if len(found) >= MIN_BLOCKS else "replicates",
        validation=_validation([replace(edited.run, before=edited.before) for edited in found]),
        waits_ms=_waits([edited.after for edited in found]),
        was_waits_ms=_waits([edited.before for edited in found]),
        starved_ms=_idle_ms([edited.after for edited in found]),
        unedited_starved_ms=_idle_ms([edited.before for edited in found]),
        block_ms={edited.run.recording.block: float(edited.after.step_ms.mean()) for edited in found},
        unedited_ms={edited.run.recording.block: float(edited.before.step_ms.mean()) for edited in found},
        assumptions=assumed,
        emulated=any(edited.run.recording.emulated for edited in found),
    )


def _validation(runs: Sequence[_Run]) -> ReplayValidation:
    return ReplayValidation(
        {run.recording.block: run.error for run in runs},
        {run.recording.block: float(run.before.step_ms.mean()) / run.recording.measured_ms - 1 for run in runs},
    )


def _waits(replays: Sequence[Simulated]) -> dict[str, float]:
    return {stage: float(np.mean([replay.waits[stage].mean() for replay in replays])) for stage in STAGES}


def _idle_ms(replays: Sequence[Simulated]) -> float | None:
    idle_ms = [replay.idle.mean() for replay in replays if replay.idle is not None]
    return float(np.mean(idle_ms)) if len(idle_ms) == len(replays) else None
