"""A timeline keeps to its budget of events, says what it left out, and never thins out the ledger."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec

import pytest

from harness.show.timeline.build import SizeLimits, timeline
from harness.show.timeline.formats import CHROME_NAME, PROTOBUF_NAME
from harness.show.timeline.model import Sources
from tests.harness.show.timeline.tables import operators
from tests.harness.synthetic import Arm, build
from tests.timeline_check.check import check

WITH_PROTOBUF = pytest.mark.skipif(find_spec("perfetto") is None, reason="perfetto is not installed (extra: trace)")
LAUNCH = "cudaLaunchKernel"


def study(count=400):
    """One arm, and ``count`` operators of 100, 200, 300, ... nanoseconds in its last step."""
    record, runs = build([Arm("a", workers=1)], blocks=1)
    since = runs[0].steps["start_ns"][-1].as_py()
    rows = [("cpu_op", f"op {i}", 1000, since + 50 * i * (i + 1), 100 * (i + 1), "main") for i in range(count)]
    return record, runs, {("a", 0): Sources(operators(*rows))}


def names(made):
    return {event["name"] for event in json.loads(gzip.decompress(made.content))["traceEvents"]}


def test_the_shortest_operators_go_first():
    record, runs, sources = study()
    whole = timeline(record, runs, sources)
    made = timeline(record, runs, sources, limits=SizeLimits(whole.events - 200, 0))
    assert made.name == CHROME_NAME
    assert made.events <= whole.events - 200
    assert check(made.content).problems == []
    left = {name for name in names(whole) if name.startswith("op ")} - names(made)
    assert left == {f"op {i}" for i in range(len(left))}
    (sentence,) = made.cut
    assert sentence.startswith(f"{len(left):,} of 400 operators, kernels and samples are left out, each of at most")
    assert json.loads(gzip.decompress(made.content))["otherData"]["cut"] == made.cut
    assert names(made) >= {name for name in names(whole) if not name.startswith(("op ", "thread_"))}


def test_a_kernel_that_stays_keeps_the_short_launch_that_its_arrow_comes_from():
    """Launches take microseconds, their kernels and the operators around them far longer."""
    record, runs, _ = study()
    since = runs[0].steps["start_ns"][-1].as_py()
    rows = []
    for i in range(200):
        start, call = since + 20_000 * i, {"correlation": i + 1}
        rows.append(("cpu_op", "op", 1000, start, 3000 + i, "main"))
        rows.append(("cuda_runtime", "cudaLaunchKernel", 1000, start + 100, 50, "main", call))
        rows.append(("kernel", f"kernel {i}", 7, start + 200, 2000 + 20 * i, "device", {**call, "device_id": 0}))
    sources = {("a", 0): Sources(operators(*rows))}
    whole = timeline(record, runs, sources)
    made = timeline(record, runs, sources, limits=SizeLimits(whole.events // 2, 0))
    assert made.events <= whole.events // 2
    assert check(made.content).problems == []
    events = json.loads(gzip.decompress(made.content))["traceEvents"]
    kernels = sum(event.get("cat") == "kernel" for event in events)
    launches, arrows = (sum(e["name"] == name and e["ph"] in "Xs" for e in events) for name in (LAUNCH, "launch"))
    assert kernels == launches == arrows
    assert 50 < kernels < 200
    cheapest = min(event["dur"] for event in events if event.get("cat") == "kernel")
    assert cheapest > float(made.cut[0].split("at most ")[1].split()[0])


def test_a_ledger_over_budget_shows_fewer_steps_but_one():
    record, runs, sources = study()
    made = timeline(record, runs, limits=SizeLimits(30, 0))
    assert made.events <= 30
    assert check(made.content).problems == []
    (sentence,) = made.cut
    assert sentence.startswith("only the last 1 of 3 steps of a run are shown")
    least = timeline(record, runs, sources, limits=SizeLimits(5, 0))
    assert "step 14" in names(least)
    assert len(least.cut) == 2


@WITH_PROTOBUF
def test_more_than_a_browser_reads_of_json_is_written_in_perfettos_own_format():
    from tests.timeline_check.check import ns
    from tests.timeline_check.protobuf import read

    record, runs, sources = study()
    whole = timeline(record, runs, sources)
    made = timeline(record, runs, sources, limits=SizeLimits(whole.events - 100, 10**6))
    assert (made.name, made.cut, made.events) == (PROTOBUF_NAME, [], whole.events)
    assert made == timeline(record, runs, sources, limits=SizeLimits(whole.events - 100, 10**6))
    expected = json.loads(gzip.decompress(whole.content))["traceEvents"]
    found = read(made.content)
    assert sorted(found.slices) == sorted(
        (e["tid"], ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["name"], e["cat"]) for e in expected if e["ph"] == "X"
    )
    assert found.arrows == sum(e["ph"] == "s" for e in expected)
    assert found.counter_points == sum(e["ph"] == "C" for e in expected)
    assert found.facts["cut"] == []
