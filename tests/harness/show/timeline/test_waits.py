"""The marks of a step add up to its row in the ledger, on a device and without one."""

from __future__ import annotations

from collections import defaultdict

from harness.explain.ledger import derived_steps
from harness.show.timeline.tracks import waits
from harness.study.contract import CAUSES, STAGES
from tests.harness.explain.by_hand import Fetch, device_columns
from tests.harness.synthetic import Arm, build
from trainer.telemetry import StageSpan


def row(role, name, start, end, batch=-1):
    return {"role": role, "name": name, "start_ns": start, "end_ns": end, "batch": batch, "pid": 1, "tid": 1}


def step(start, end, transfer=0):
    return {"start_ns": start, "wall_ns": end - start, "fetch_ns": 0, "exposed_transfer_ns": transfer}


def by_cause(marks):
    """Nanoseconds by cause; a mark with parts counts by its parts."""
    total = defaultdict(int)
    for mark in marks:
        if mark.args is not None:
            for cause, milliseconds in mark.args.items():
                if cause != "cause":
                    total[cause.removesuffix("_ms")] += round(milliseconds * 1e6)
    return dict(total)


# One step of 100: the host fetches inline, launches, waits for the norm; the device works in [40, 70) and [80, 95).
STEPS = [step(0, 100)]
SPANS = [
    row("main", "fetch", 5, 35, batch=0),
    row("main", "read", 5, 10, batch=0),
    row("main", "tokenize", 10, 30, batch=0),
    row("main", "forward", 35, 50),
    row("main", "optimizer", 72, 90),
    row("sync", "trainer/compute.py:140 item", 50, 72),
    row("launch", "forward", 36, 38),
    row("launch", "optimizer", 73, 75),
    row("device", "forward", 40, 70),
    row("device", "optimizer", 80, 95),
]


def test_a_starved_device_is_marked_with_its_largest_cause_and_the_parts():
    marks = waits(STEPS, SPANS)
    outer = [(mark.name, mark.start_ns, mark.end_ns) for mark in marks if mark.args is not None]
    assert outer == [("idle: tokenize", 0, 40), ("idle: python", 70, 80), ("idle: python", 95, 100)]
    parts = [(mark.name, mark.start_ns, mark.end_ns) for mark in marks if mark.args is None]
    assert parts[:5] == [
        ("python", 0, 5), ("read", 5, 10), ("tokenize", 10, 30), ("transfer", 30, 35), ("python", 35, 40)
    ]  # fmt: skip


def test_starved_marks_add_up_to_the_ledger():
    spans = [StageSpan(r["name"], r["start_ns"], r["end_ns"]) for r in SPANS if r["name"] in ("read", "tokenize")]
    phases = [StageSpan(r["name"], r["start_ns"], r["end_ns"]) for r in SPANS if r["role"] == "main"][3:]
    columns = device_columns(
        [(0, 100)], [(40, 70), (80, 95)], [(36, 38), (73, 75)],
        [*phases, StageSpan("sync", 50, 72)], [Fetch(0, 5, 35, spans)],
    )  # fmt: skip
    total = by_cause(waits(STEPS, SPANS))
    assert sum(total.values()) == columns["device_starved_ns"][0]
    assert total == {cause: value for cause in CAUSES if (value := columns[f"starved_{cause}_ns"][0])}


def test_waits_without_a_device_add_up_to_the_ledger():
    _, runs = build([Arm("worker", workers=1, tokenize=40.0, transfer=0.3)])
    steps = derived_steps(runs[0]).table.to_pylist()
    total = by_cause(waits(steps, runs[0].spans.to_pylist()))
    assert total["tokenize"] > 0
    assert total == {stage: value for stage in STAGES if (value := sum(s[f"during_wait_{stage}_ns"] for s in steps))}


def test_a_batch_of_which_nobody_told_has_an_unknown_cause():
    (mark,) = waits([step(0, 100, None)], [row("main", "fetch", 5, 35, batch=0)])
    assert (mark.name, mark.args["cause"]) == ("waits: unknown", "unknown")
    assert waits([step(50, 100)], [row("main", "fetch", 5, 35, batch=0)]) == []  # outside the shown steps
