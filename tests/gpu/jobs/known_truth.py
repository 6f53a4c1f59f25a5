"""Measures known truth on a real device: data costs predicted from one run, beside what other runs measured.

Five quantities of each pipeline (``tests.gpu.pipelines``) are predicted from the record of its own run alone:

step      by the unedited replay, from steps drawn as predictions draw them; measured: its own steps
exposed   what data work costs a step, by the ledger; measured: its step less that of the arm without data
idle      what the device idled for data, by the ledger; measured: the same difference
ceiling   what a step without data work saves, by replay; measured: the same difference
removal   what one edit saves, by replay; measured: its step less that of the edited arm

An error is predicted less measured, in percent of the pipeline's own step. Its interval holds the scatter of what was
measured, turn by turn: a host that is slower in one turn than in another says little in four of them.

``python -m tests.gpu.jobs.known_truth FOLDER`` analyses the kept studies of a result again, without a card.
"""

from __future__ import annotations

import json
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.explain.lead_use import lead_use
from harness.explain.ledger import RunLedger, measure
from harness.explain.replay.predict import Replays
from harness.explain.statistics import Estimate, reach_of_mean
from harness.launch.block import plan_repetitions
from harness.scenario.edits import parse_edits
from harness.study.contract import STAGES
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests.campaigns.known_truth.waited import waited_share
from tests.gpu.jobs.commands import failing_alone, harness
from tests.gpu.lease.place import Place
from tests.gpu.pipelines import CUDA, EMULATED, FEW, NAME, PIPELINES, SLICE_STEPS, TWIN, Pipeline, scenario
from trainer.config import recorded_config

WITHIN = 3.0  # percent of the step
QUANTITIES = ("step", "exposed", "idle", "ceiling", "removal")
MOST_EXTRA = 10  # warm-up steps of a turn beyond those planned
TOO_FAST = 1.0  # percent by which measured steps may be faster than the steady state, on average
EDGE_STEPS = 5  # number of a turn's first measured steps; twice as many are its last ones
RESERVE_S = 12.0  # seconds for reading the last study


@dataclass(frozen=True)
class Row:
    """One quantity of one pipeline, in milliseconds per step."""

    pipeline: str
    quantity: str
    step_ms: float
    predicted_ms: float
    measured_ms: float
    low_ms: float | None = None
    """Of the prediction, where the record leaves it open."""
    high_ms: float | None = None
    scatter_ms: float = 0.0
    """Half of the 95 % interval of ``measured_ms``, from its turns."""

    @property
    def error(self) -> float:
        """Percent of the step."""
        return self._percent(self.predicted_ms)

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the error."""
        low, high = (self.predicted_ms if end is None else end for end in (self.low_ms, self.high_ms))
        return self._percent(low - self.scatter_ms), self._percent(high + self.scatter_ms)

    def _percent(self, predicted_ms: float) -> float:
        return round(100 * (predicted_ms - self.measured_ms) / self.step_ms, 2)


def run(place: Place) -> None:
    """Run the studies one after the other; the figures of each are written before the next one begins."""
    groups = [FEW] if place.emulated else [[one for one in PIPELINES if one.bound == bound] for bound in CUDA]
    rows: list[Row] = []
    beside = Beside()
    for done, pipelines in enumerate(groups):
        seconds = (place.left_s - RESERVE_S) / (len(groups) - done)
        content = scenario(pipelines, EMULATED, turns=3) if place.emulated else scenario(pipelines, CUDA)
        runs: dict[str, RunData] = {}
        with failing_alone(place, f"study {done}"):
            if (study := _study(content, place.work / f"known-truth-{done}", seconds)) is not None:
                runs = {run.record.arm: run for run in study.runs() if run.record.status == "done"}
                _pack(study, place.out / f"study-{done}.tar.xz")
        for one in pipelines:
            rows += _record(place, one, runs)
        for arm, run in runs.items():
            with failing_alone(place, arm):
                beside.add(run)
                if arm.startswith(TWIN):
                    _record_twin(place, runs[arm.removeprefix(TWIN)], run)
        (place.out / "rows.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    _summarize(place, rows, len(QUANTITIES) * sum(map(len, groups)))
    _record_beside(place, beside)


def _study(content: dict[str, Any], folder: Path, seconds: float) -> StudyFolder | None:
    """Run the scenario ``content``; return its study, also if runs failed or its time was up. None if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scenario.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    # The memory of a lent machine grows as it is used, so the memory that is free now decides nothing.
    harness("run", str(file), "--out", str(folder), "--force", log=folder / "log.txt", seconds=seconds)
    studies = sorted((folder / NAME).glob("*"))
    return StudyFolder(studies[-1]) if studies else None


def _pack(study: StudyFolder, file: Path) -> None:
    """Keep the study in one file: what a card recorded can be analysed again without a card."""
    with tarfile.open(file, "w:xz") as packed:
        for path in (study.study_json, study.path / "runs"):
            if path.exists():
                packed.add(path, path.name)


def _record(place: Place, pipeline: Pipeline, runs: Mapping[str, RunData]) -> list[Row]:
    """Add the five figures of one pipeline, "not measured" for each that fails."""
    rows = []
    for quantity in QUANTITIES:
        name, asked = f"{pipeline.name}: {quantity}", f"within {WITHIN:g} % of the step"
        try:
            row = row_of(pipeline, quantity, runs)
        except Exception as error:  # one figure is lost, not the job
            print(f"{name}: {error!r}", flush=True)
            place.add(name, None, "% of the step", asked=asked)
            continue
        low, high = row.interval if row.scatter_ms or row.low_ms != row.high_ms else (None, None)
        place.add(name, row.error, "% of the step", low=low, high=high, asked=asked, holds=abs(row.error) <= WITHIN)
        rows.append(row)
    return rows


def row_of(pipeline: Pipeline, quantity: str, runs: Mapping[str, RunData]) -> Row:
    """Return one of :data:`QUANTITIES`; raises an error where a run is missing, or its record does not tell."""
    own = runs[pipeline.name]
    ledger, replays = _ledger(own), Replays([own])
    step_ms = usual_step_ms(ledger)
    interval: tuple[float | None, float | None] = (None, None)
    if quantity == "step":
        off = replays.validation.resampled_median
        return Row(pipeline.name, quantity, step_ms, step_ms * (1 + off), step_ms)
    other = pipeline.edited if quantity == "removal" else pipeline.none
    measured_ms = step_ms - usual_step_ms(_ledger(runs[other]))
    scatter_ms = _scatter_ms(ledger, _ledger(runs[other]))
    if quantity == "exposed":
        assert ledger.waited_ms is not None, f"its waits were not split: {ledger.unsplit}"
        predicted_ms, interval = ledger.waited_ms, ledger.waited_range_ms or interval
    elif quantity == "idle":
        assert ledger.device_starved_ms is not None, "what the device did is not recorded"
        predicted_ms = sum(ledger.starved_ms.get(stage, 0.0) for stage in STAGES)
    else:
        predicted_ms, interval = _saved(replays, pipeline, quantity)
    return Row(pipeline.name, quantity, step_ms, predicted_ms, measured_ms, *interval, scatter_ms)


def _saved(replays: Replays, pipeline: Pipeline, quantity: str) -> tuple[float, tuple[float | None, float | None]]:
    """Return what removing all data work, or the pipeline's edit, saves by replay, with its interval."""
    removed = {(one.kind, one.name): one.saved_ms for one in replays.removals()}
    if quantity == "ceiling":
        saved: Estimate | None = removed.get(("cause", "data"))
    elif pipeline.edit == "tokenize=0":
        saved = removed.get(("stage", "tokenize"))
    else:
        predicted = replays.predict(parse_edits([pipeline.edit]))
        was, now = predicted.measured_ms.median, predicted.step_ms
        low, high = (None if end is None else was - end for end in (now.ci_high, now.ci_low))
        return was - now.median, (low, high)
    assert saved is not None, "no such part in its record"
    return saved.median, (saved.ci_low, saved.ci_high)


def _ledger(run: RunData) -> RunLedger:
    ledger = measure(run)
    assert ledger is not None, f"{run.record.arm} has no measured step"
    return ledger


def usual_step_ms(ledger: RunLedger) -> float:
    """Mean step with each rare long one counted as a typical one: a pause of the machine is no part of a pipeline."""
    turns = ledger.repetitions.values()
    return sum(turn.usual_ns for turn in turns) / sum(turn.steps for turn in turns) / 1e6


def _longer_ms(run: RunLedger, other: RunLedger) -> list[float]:
    """Return by how much longer the steps of ``run`` are than those of ``other``, turn by turn."""
    turns = sorted(run.repetitions.keys() & other.repetitions.keys())
    pairs = [[one.repetitions[turn] for one in (run, other)] for turn in turns]
    return [(own.usual_ns / own.steps - its.usual_ns / its.steps) / 1e6 for own, its in pairs]


def _scatter_ms(run: RunLedger, other: RunLedger) -> float:
    """Return half of the 95 % interval of how much longer the steps of ``run`` are; 0 for one turn."""
    longer_ms = _longer_ms(run, other)
    return reach_of_mean(longer_ms) if len(longer_ms) > 1 else 0.0


def _record_twin(place: Place, run: RunData, twin: RunData) -> None:
    """Add how far two runs of one configuration differ: no prediction can be better."""
    ledgers = [_ledger(one) for one in (twin, run)]
    again, was = map(usual_step_ms, ledgers)
    reach = _scatter_ms(*ledgers)
    low, seen, high = (round(100 * (again + off - was) / was, 2) for off in (-reach, 0.0, reach))
    place.add(f"{run.record.arm}: the same once more", seen, "% of the step", low=low, high=high)


def _summarize(place: Place, rows: Sequence[Row], expected: int) -> None:
    for quantity in QUANTITIES:
        errors = [abs(row.error) for row in rows if row.quantity == quantity]
        if errors:
            place.add(f"{quantity}: median error", round(statistics.median(errors), 2), "% of the step")
            place.add(f"{quantity}: worst error", max(errors), "% of the step")
    within, beyond = _counts(rows)
    asked = f"all {expected} within {WITHIN:g} % of the step"
    place.add("within 3 %", within, f"of {expected} figures", asked=asked, holds=within == expected)
    if rows:
        place.add("more than 3 % off by all of the 95 % interval", beyond, f"of {expected} figures")


def _counts(rows: Sequence[Row]) -> tuple[int, int]:
    """Return how many errors are within :data:`WITHIN`, and how many beyond it by all of their interval."""
    beyond = sum(low > WITHIN or high < -WITHIN for low, high in (row.interval for row in rows))
    return sum(abs(row.error) <= WITHIN for row in rows), beyond


@dataclass(frozen=True)
class Turn:
    """One turn of a run without loader workers."""

    extra_steps: int
    """Of warm-up, beyond those planned."""
    early: float
    """Its first measured steps against its last ones, in percent; below 0 where they are faster."""


@dataclass
class Beside:
    """Figures of the runs themselves, whatever their pipelines are."""

    turns: list[Turn] = field(default_factory=list)
    too_fast: list[float] = field(default_factory=list)
    """By run: percent by which its measured steps were faster than later steps."""
    waited: list[float] = field(default_factory=list)
    """By run: percent of its steps that it waited for a core."""

    def add(self, run: RunData) -> None:
        self.turns += turns_of(run)
        self.waited.append(100 * waited_share(run))
        if (used := lead_use([_ledger(run).used_leads])) is not None:
            self.too_fast.append(100 * used.share)


def turns_of(run: RunData) -> Iterator[Turn]:
    """Yield the turns of ``run``; none if it has workers, whose batches come in bursts."""
    columns = run.step_columns(("turn", "warmup", "wall_ns"))
    config = recorded_config(run.record.config)
    if columns is None or config.data.workers:
        return
    planned = plan_repetitions(config, run.record.interleave, SLICE_STEPS).warmup
    steps = columns.to_pylist()
    for turn in sorted({step["turn"] for step in steps}):
        own = [step for step in steps if step["turn"] == turn]
        wall_ns = [step["wall_ns"] for step in own if not step["warmup"]]
        taken = len(own) - len(wall_ns) - planned - (config.warmup_steps if turn == 0 else 0)
        if len(wall_ns) > 2 * EDGE_STEPS:
            first, last = statistics.median(wall_ns[:EDGE_STEPS]), statistics.median(wall_ns[-2 * EDGE_STEPS :])
            yield Turn(taken, round(100 * (first / last - 1), 3))


def _record_beside(place: Place, found: Beside) -> None:
    if found.waited:
        place.add("waited for a core: the worst run", round(max(found.waited), 2), "% of its steps")
    if found.turns:
        taken = sorted(turn.extra_steps for turn in found.turns)
        few = round(100 * sum(one <= MOST_EXTRA for one in taken) / len(taken), 1)
        name = f"warm-up: turns of at most {MOST_EXTRA} extra steps"
        place.add("warm-up: extra steps of a turn, median", statistics.median(taken), "steps")
        place.add("warm-up: extra steps of a turn, most", taken[-1], "steps")
        place.add(name, few, f"% of {len(taken)}", asked="95 %", holds=few >= 95)
        early = round(statistics.fmean(turn.early for turn in found.turns), 2)
        place.add("warm-up: first measured steps against last", early, "%")
    if found.too_fast:
        mean = round(statistics.fmean(found.too_fast), 2)
        asked = f"at most {TOO_FAST:g} % on average"
        name = "warm-up: faster than the steady state"
        place.add(name, mean, f"% of the step, {len(found.too_fast)} runs", asked=asked, holds=mean <= TOO_FAST)
        place.add(f"{name}, the worst run", round(max(found.too_fast), 2), "% of the step")


def again(archive: Path) -> None:
    """Print the errors of the pipelines whose study ``archive`` holds, by the present analysis, and its twins."""
    with tempfile.TemporaryDirectory(prefix="known-truth-") as folder, tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
        runs = {run.record.arm: run for run in StudyFolder(Path(folder)).runs()}
        rows = [row_of(one, quantity, runs) for one in PIPELINES if one.name in runs for quantity in QUANTITIES]
        within, beyond = _counts(rows)
        print(f"{archive.name}: {within} of {len(rows)} within {WITHIN:g} %, {beyond} off by all of their interval")
        for row in rows:
            print(f"  {row.pipeline}, {row.quantity}: {row.error:+.2f} % of {row.step_ms:.1f} ms")
        for arm in runs:
            if arm.startswith(TWIN):
                longer_ms = _longer_ms(*map(_ledger, (runs[arm], runs[arm.removeprefix(TWIN)])))
                print(f"  {arm}, by turn: {', '.join(f'{one:+.2f}' for one in longer_ms)} ms longer than its twin")


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("study-*.tar.xz")):
        again(path)
