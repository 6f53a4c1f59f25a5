"""Runs pipelines for real and compares ledger, verdict and replay with the truth."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.analysis.replay.edits import parse_edits
from harness.analysis.replay.predict import predict, unedited_error
from harness.analysis.study import StudyReport, analyse
from harness.results import CAUSES, STAGES, RunData, StudyFolder
from tests.known_truth.pipelines import STEPS, Pipeline, draw, scenario
from tests.known_truth.truth import Expected, Machine, expected

WITHIN_SHARE, WITHIN_MS = 0.03, 0.3  # of a step, or this many milliseconds: whichever is more


@dataclass
class Row:
    """One pipeline. Milliseconds per step; errors are found - truth (times: in ms), or found / truth - 1 (replays)."""

    seed: int
    edit: str
    pipeline: Pipeline
    truth: Expected
    step_ms: float
    starved_ms: dict[str, float]
    hidden_ms: dict[str, float]
    allowed_ms: float
    worst_starved: tuple[str, float]
    worst_hidden: tuple[str, float]
    true_ratio: float
    measured_ratio: float
    noise_floor: float | None
    verdict: str
    verdict_right: bool
    false_call: bool  # called a gain or a loss although next to none is declared
    unedited: list[float]  # per run, in the order recorded
    resampled: list[float]  # per run, from the durations of measured steps alone, as predictions are made
    edited: float

    @property
    def ledger_right(self) -> bool:
        return abs(self.worst_starved[1]) <= self.allowed_ms and abs(self.worst_hidden[1]) <= self.allowed_ms


def run_study(content: dict[str, Any], folder: Path) -> StudyFolder:
    """Run a scenario through the real entry point; the study's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scenario.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    command = [sys.executable, "-m", "harness", "run", str(folder / "scenario.yaml"), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return StudyFolder(max((folder / content["name"]).iterdir()))


def calibrate(folder: Path) -> StudyFolder:
    """Two arms that declare hardly anything: one waits for each batch, one finds it ready."""
    kernels = {"h2d_ms": 0, "forward_ms": 4, "backward_ms": 4, "norm_ms": 0, "optimizer_ms": 4}
    slow = {"tokenize_ms": 20, "how": "sleep"}
    content = scenario([], 3) | {
        "arms": {"starving": {"data.inject": slow}, "ready": {"data.inject": {**slow, "tokenize_ms": 2}}},
        "compare": None,
        "controls": [],
    }
    content["base"] |= {"data.workers": 1, "data.sequence_length": 64, "compute.device.kernels": kernels}
    content["base"]["data"].pop("sequence_length")
    return run_study(content, folder)


def machine_of(calibration: StudyFolder) -> Machine:
    """What handing over, receiving, asking and waking cost here, from the study of :func:`calibrate`."""
    runs = list(calibration.runs())
    handover = [
        fetch["end_ns"] - max(stage["end_ns"] for stage in stages)
        for run in runs if run.record.arm == "starving"
        for fetch, stages in _batches(run) if stages
    ]  # fmt: skip
    receive = [
        fetch["end_ns"] - fetch["start_ns"] for run in runs if run.record.arm == "ready" for fetch, _ in _batches(run)
    ]
    # Its worker waits to be asked: batch k + 2 (workers x prefetch) as soon as batch k has been received.
    asked = []
    for run in runs:
        if run.record.arm == "ready":
            found = _batches(run)
            for (fetch, _), (_, stages) in zip(found, found[2:], strict=False):
                if stages and (began := min(stage["start_ns"] for stage in stages)) > fetch["end_ns"]:
                    asked.append(began - fetch["end_ns"])
    rows = [row for run in runs if run.record.arm == "ready" for row in _spans(run)]
    ends = sorted(row["end_ns"] for row in rows if row["role"] == "device")
    wakes = []
    for row in rows:
        if row["role"] == "sync":
            before = [end for end in ends if end <= row["end_ns"]]
            wakes.append(row["end_ns"] - max(max(before, default=row["start_ns"]), row["start_ns"]))
    ms = [statistics.median(values) / 1e6 for values in (handover, receive, wakes, asked)]
    return Machine(handover=ms[0], receive=ms[1], wake=ms[2], request=ms[3])


def check(study: StudyFolder, seeds: list[int], machine: Machine) -> list[Row]:
    """One row per pipeline of a finished study."""
    runs = list(study.runs())
    report = analyse(study.read_study(), runs)
    return [_row(seed, report, runs, machine) for seed in seeds]


def _row(seed: int, report: StudyReport, runs: list[RunData], machine: Machine) -> Row:
    pipeline, edit = draw(seed)
    truth, edited_truth = (expected(one, machine, STEPS) for one in (pipeline, pipeline.edited(edit)))
    own = [run for run in runs if run.record.arm == f"p{seed}"]
    arm, other = report.arm(f"p{seed}"), report.arm(f"p{seed}-edited")
    comparison = next(c for c in report.comparisons if c.baseline == f"p{seed}")
    assert arm is not None
    assert arm.step_ms is not None
    assert other is not None
    assert other.step_ms is not None
    assert comparison.step_time is not None
    starved = {cause: arm.starved_ms.get(cause, 0.0) - truth.starved.get(cause, 0.0) for cause in CAUSES}
    hidden = {stage: arm.hidden_ms.get(stage, 0.0) - truth.hidden.get(stage, 0.0) for stage in STAGES[:3]}
    ratio = truth.step / edited_truth.step
    floor = comparison.noise_floor or 0.0
    verdict = comparison.verdict
    # Outside the noise floor (and what the truth itself is known to) it must be called, by its right name; inside,
    # never by the wrong one.
    outside = abs(ratio - 1) > max(floor, WITHIN_SHARE)
    direction = "gain" if ratio > 1 else "loss"
    right = verdict == direction or (verdict == "none" and not outside)
    if verdict != "none" and abs(ratio - 1) <= 0.1 * abs(comparison.step_time.median - 1):
        right = True  # next to nothing is declared: neither name is wrong, and it is listed by itself
    false_call = verdict != "none" and abs(ratio - 1) <= 0.1 * abs(comparison.step_time.median - 1)
    predicted = predict(own, parse_edits([edit]))
    return Row(
        seed=seed,
        edit=edit,
        pipeline=pipeline,
        truth=truth,
        step_ms=arm.step_ms.median,
        starved_ms=arm.starved_ms,
        hidden_ms=arm.hidden_ms,
        allowed_ms=max(WITHIN_SHARE * truth.step, WITHIN_MS),
        worst_starved=max(starved.items(), key=lambda one: abs(one[1])),
        worst_hidden=max(hidden.items(), key=lambda one: abs(one[1])),
        true_ratio=ratio,
        measured_ratio=comparison.step_time.median,
        noise_floor=comparison.noise_floor,
        verdict=verdict,
        verdict_right=right,
        false_call=false_call,
        unedited=[unedited_error(run) for run in own],
        resampled=list(predicted.licence.resampled.values()),
        edited=predicted.step_ms.median / other.step_ms.median - 1,
    )


def _batches(run: RunData) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(fetch, stages of that batch) of every measured fetch but the first few."""
    rows = _spans(run)
    fetches = [row for row in rows if row["role"] == "main" and row["name"] == "fetch"][10:]
    stages: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["role"].startswith("loader"):
            stages.setdefault(row["batch"], []).append(row)
    return [(fetch, stages.get(fetch["batch"], [])) for fetch in fetches]


def _spans(run: RunData) -> list[dict[str, Any]]:
    assert run.spans is not None
    rows: list[dict[str, Any]] = run.spans.to_pylist()
    return rows
