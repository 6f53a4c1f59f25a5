"""What a recording reads off the tables: the loader's latencies, the host's programs, stops in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from harness.explain import policy
from harness.explain.replay import Replays, parse_edits, predict, replace_data, unedited_error
from harness.explain.replay.attribution import critical_path_ms
from harness.explain.replay.pipeline import build
from harness.explain.replay.recording import record
from harness.explain.statistics import Estimate
from harness.scenario.edits import Edits
from harness.show.dose import assumption_lines
from harness.study.run_data import RunData
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import MS, Truth
from trainer.errors import InputError

WAITING = Truth(tokenize=40.0, workers=1, spread=0.0, handover=2.6, receive=1.9, unpack=1.5)
READY = Truth(tokenize=1.0, workers=2, handover=0.5, receive=0.4)
SEEN = Truth(tokenize=16.0, workers=1, handover=1.7, receive=0.6, after=0.25, wake=0.15, spread=0.6, steps=200)


@pytest.mark.parametrize(
    ("truth", "configured", "assumed", "costs"),
    [
        (SEEN, {}, {}, {"handover": 1.7, "receive": 0.6, "after": 0.25, "wake": 0.15}),
        # A cost that is never observed is assumed. All batches lay ready, or none.
        (READY, {}, {"hand-over": 0.4 / 0.75}, {"receive": 0.4, "handover": 0.4 / 0.75}),
        (Truth(tokenize=40.0, workers=1, spread=0.0, handover=2.0), {}, {"receive": 1.5}, {"receive": 1.5}),
        # A declared cost of a transfer is known where it does not show: the worker spends it after the last stage.
        (
            Truth(tokenize=1.0, workers=1, receive=1.8), {"inject": {"transfer_ms": 1.5}},
            {"hand-over": 1.5 + 1.8 / 0.75}, {"handover": 1.5 + 1.8 / 0.75, "after": 1.5 + 0.2},
        ),
        # Where arrivals are recorded, a run that always waits shows what receiving costs.
        (WAITING, {}, {}, {"handover": 2.6, "receive": 1.9, "unpack": 1.5}),
        (
            replace(WAITING, tokenize=1.0), {}, {"hand-over": 1.9 / 0.75}, {"receive": 1.9, "handover": 1.9 / 0.75}
        ),
        (WAITING, {"transport": "ring"}, None, {"unpack": 0.0, "receive": 1.9}),  # a connection for each worker
        (Truth(workers=0, remainder=0.3), {}, {}, {"receive": 0.3, "handover": 0.0}),  # inline: what no stage covers
    ],
)  # fmt: skip
def test_costs_between_worker_and_main_thread_are_seen_or_assumed_and_reported(
    truth: Truth, configured: dict[str, Any], assumed: dict[str, float] | None, costs: dict[str, float]
) -> None:
    run = oracle.run(truth)
    run.record.config["data"].update(configured)
    found = record(run).batches
    for name, value in costs.items():
        assert np.median(getattr(found, name)) / MS == pytest.approx(value, abs=0.03), name
    if assumed is not None:
        assert {cost.part: cost.ms for cost in found.assumed} == pytest.approx(assumed, abs=0.001)


def test_receiving_is_not_said_to_cost_more_than_was_waited_for_a_batch() -> None:
    """Data-only: 10 ms of hand-over, three batches on the way, and a step of 5 ms; once 7.5 of them were receiving."""
    truth = Truth(workers=3, tokenize=2.0, handover=10.0, receive=0.1, spread=0.0, jitter=0.0, asynchronous=False)
    run = oracle.run(truth.having(host=dict.fromkeys(truth.host, 0.01), prefetch=1))
    found = record(run).batches
    ((part, said_ms),) = ((cost.part, cost.ms) for cost in found.assumed)
    assert part == "receive"
    assert said_ms == np.median(found.receive[found.usable]) / MS
    assert said_ms < oracle.step_ms(run)


@pytest.mark.parametrize("receive", [0.0, 5.8])
def test_where_no_batch_lay_ready_receiving_may_cost_nothing_or_all_of_the_hand_over(receive: float) -> None:
    """Once the interval ended at three quarters of a hand-over: 7.7 ms a step, where it is 8.3 and more."""
    slow = {"tokenize": 40.0, "handover": 5.8, "receive": receive, "asynchronous": False}
    truth = Truth(workers=1, spread=0.0, jitter=0.0, steps=30, **slow)
    now = oracle.step_ms(oracle.run(truth.having(tokenize=0.0)))
    run = oracle.run(truth)
    fed = replace_data([oracle.run(truth.having(tokenize=0.0, receive=0.1))], [run])  # the loader is the one that waits
    for found in (predict([run], parse_edits(["tokenize=0"])).step_ms, _removed(run, "tokenize")):
        assert found.ci_low < 1.001 * now
        assert found.ci_high > 0.999 * now
    assert [one.kind for one in fed.assumptions] == ["loader alone", "receive not observed"]


def _removed(run: RunData, stage: str) -> Estimate:
    """The step time without ``stage``, from what its removal saves."""
    was = oracle.step_ms(run)
    (saved,) = (one.saved_ms for one in Replays([run]).removals() if (one.kind, one.name) == ("stage", stage))
    return Estimate(was - saved.median, was - saved.ci_high, was - saved.ci_low, saved.n)


@pytest.mark.parametrize(("handover", "unpack"), [(0.4, None), (1.55, 0.3)])
def test_a_hand_over_that_nobody_waited_for_may_take_nothing_or_several_times_what_is_assumed(
    handover: float, unpack: float | None
) -> None:
    """Batches lie ready beside 25 ms of compute; beside a device that is much faster each is waited for."""
    host = {"h2d": 0.1, "forward": 10.0, "backward": 15.0, "optimizer": 0.1, "sync": 0.05, "log": 0.1}
    truth = Truth(workers=1, prefetch=1, tokenize=1.0, spread=0.0, jitter=0.0, steps=30, asynchronous=False, host=host)
    truth = truth.having(receive=0.4, handover=handover, unpack=unpack)
    run = oracle.run(truth)
    predicted = predict([run], parse_edits(["device=1000x"]))
    now = oracle.step_ms(oracle.run(truth.having(speed=1000.0)))
    assert [one.kind for one in predicted.assumptions] == ["hand-over not observed", "device speed"]
    assert predicted.step_ms.ci_low < 1.001 * now
    assert predicted.step_ms.ci_high > 0.999 * now
    (saved,) = (one for one in Replays([run]).removals() if (one.kind, one.name) == ("phase", "backward"))
    assert saved.saved_ms.ci_low <= 15.1
    unedited = predict([run], parse_edits([])).step_ms
    assert unedited.ci_low == pytest.approx(unedited.ci_high, rel=0.002), "the recorded order bounds a hand-over"


def test_a_hand_over_that_was_not_seen_is_never_taken_to_last_longer_than_the_record_allows() -> None:
    """Each batch is asked for 2 ms after its last stage: three times the assumed 1.1 ms would have been waited for."""
    truth = Truth(workers=1, prefetch=1, tokenize=3.0, spread=0.0, jitter=0.0, receive=0.8, handover=0.9, unpack=0.3)
    host = {**dict.fromkeys(truth.host, 0.0), "forward": 5.8}
    run = oracle.run(truth.having(host=host, asynchronous=False, steps=30))
    found = record(run)
    slowest = found.all_readings["handed over slowly"].batches
    assert (slowest.handover <= slowest.most_handover).all()
    predicted = predict([run], parse_edits([])).step_ms
    assert predicted.ci_high <= 1.005 * oracle.step_ms(run), "three times the hand-over would be 5 % more"


@pytest.mark.parametrize("transport", ["dataloader", "ring"])
def test_a_hand_over_that_nobody_recorded_costs_what_it_usually_does_by_the_configured_transport(
    transport: str,
) -> None:
    usual_ms = 3 * {"dataloader": 0.9, "ring": 0.04}[transport]
    host = {"h2d": 0.1, "forward": 0.1, "backward": 0.1, "optimizer": 0.1, "sync": 0.05, "log": 0.1}
    truth = Truth(workers=0, remainder=0.0, tokenize=2.0, spread=0.0, jitter=0.0, asynchronous=False, host=host)
    run = oracle.run(truth)
    run.record.config["data"]["transport"] = transport
    costs = {"handover": usual_ms, "receive": 0.75 * usual_ms, "after": 0.05, "wake": 0.0}
    now = oracle.step_ms(oracle.run(truth.having(workers=1, prefetch=1, **costs)))
    predicted = predict([run], parse_edits(["workers=1", "prefetch=1"]))
    assert predicted.step_ms.median == pytest.approx(now, rel=0.01)
    (line,) = (line for line in assumption_lines(predicted.assumptions) if "the recording has no workers" in line)
    assert (" as data.transport is ring" in line) == (transport == "ring")


@pytest.mark.parametrize("unpack", [None, 1.5], ids=["without arrivals", "with arrivals"])
@pytest.mark.parametrize(
    ("pattern", "part"), [((3.0,) * 6 + (0.1,) * 100, "hand-over"), ((0.1,) * 12 + (4.0,) * 200, "receive")]
)
def test_what_only_warmup_showed_is_assumed_and_reported(
    unpack: float | None, pattern: tuple[float, ...], part: str
) -> None:
    """Batches that were waited for in warmup alone, or lay ready in warmup alone: those of measured steps count."""
    truth = replace(WAITING, unpack=unpack, pattern=pattern, tokenize=20.0, lead=0.0, warmup=12, steps=30)
    found = record(oracle.run(truth)).batches
    taken = found.receive if part == "receive" else found.handover
    if part == "receive" and unpack is not None:  # an arrival shows it wherever the batch was waited for
        assert not found.assumed
        assert np.median(taken) / MS == pytest.approx(1.9, abs=0.001)
    else:
        assert [(cost.part, cost.ms) for cost in found.assumed] == [(part, pytest.approx(np.median(taken) / MS))]


def test_a_batch_that_was_unpacked_before_its_turn_still_costs_what_it_cost() -> None:
    """Two workers, one of which is always late: the batches of the other are unpacked within the waits for it."""
    truth = replace(WAITING, workers=2, pattern=(1.6, 0.4), steps=61)
    run = oracle.run(truth)
    found = record(run).batches
    assert found.receive / MS == pytest.approx(1.9, abs=0.001)
    fetches = run.spans.filter(pc.equal(run.spans.column("name"), "fetch"))
    lasted = np.subtract(*(fetches.column(name).to_numpy() for name in ("end_ns", "start_ns"))) / MS
    assert np.count_nonzero(np.abs(lasted - 0.4) < 0.01) > 20, "no batch came before its turn: this test tests nothing"
    assert abs(unedited_error(run)) < 0.001
    assert sum(critical_path_ms(record(run)).values()) == pytest.approx(oracle.step_ms(run), rel=0.002)


def test_a_batch_whose_worker_was_stopped_is_mended_by_its_cpu_time() -> None:
    truth = Truth(tokenize=40.0, workers=2, spread=0.5, repetitions=5, seed=3)
    together = record(oracle.run(replace(truth, repetitions=1)))
    run = oracle.run(truth)
    stages = run.spans.to_pydict()
    stopped = [
        end - start for start, end in zip(stages["start_ns"], stages["end_ns"], strict=True) if end - start > 500 * MS
    ]
    assert stopped, "no builder was stopped half way: this test tests nothing"
    found = record(run)
    # The start, and five repetitions.
    assert [resume.repetition for resume in found.resumes.values()] == [False, *[True] * 5]
    worked = [resume.worked_ns for resume in found.resumes.values()]
    assert worked == pytest.approx([truth.lead * MS, *while_the_device_drained(run)], abs=0.15 * MS)
    count = min(len(found.batches), len(together.batches))
    mended, plain = (one.batches.stage["tokenize"][:count] for one in (found, together))
    assert mended == pytest.approx(plain, rel=1e-6)
    assert abs(unedited_error(run)) < 0.001


def test_a_sleeping_builder_that_was_stopped_borrows_from_its_neighbour() -> None:
    run = oracle.run(Truth(tokenize=40.0, workers=2, spread=0.0, repetitions=5))
    asleep = run.spans.set_column(
        run.spans.column_names.index("cpu_ns"), "cpu_ns", pa.array([0] * run.spans.num_rows, pa.int64())
    )
    found = record(RunData(run.record, run.steps, asleep, None)).batches
    assert found.stage["tokenize"] / MS == pytest.approx(40.0, rel=1e-4)
    known = [(told, true) for told, true in zip(found.worked_ns, while_the_device_drained(run), strict=True) if told]
    assert len(known) >= 3
    assert [told for told, _ in known] == pytest.approx([true for _, true in known], abs=0.1 * MS)


def while_the_device_drained(run: RunData) -> list[float]:
    """By repetition, how long the builders went on after the loop paused: the oracle stops them for 700 ms only."""
    steps = run.steps.to_pydict()
    ends = [start + wall for start, wall in zip(steps["start_ns"], steps["wall_ns"], strict=True)]
    stood = [start - end for start, end in zip(steps["start_ns"][1:], ends, strict=False)]
    return [float(time - 700 * MS) for time in stood if time]


def test_programs_of_steps_that_log_and_end_a_repetition_are_told_apart() -> None:
    truth = Truth(log_every=5, steps=40, warmup=5, workers=0)
    found = record(oracle.run(truth))
    # Warmup, settling and measured steps end with a wait for the device to be no more than a step behind; two of these
    # log, as eight others do.
    assert sorted(len(one.steps) for one in found.classes) == [1, 2, 8, 35]
    # device: h2d, forward, backward, norm, optimizer; sync: the gradient norm
    kinds = [event.kind for event in found.classes[0].events if event.kind != "host"]
    assert kinds == ["fetch", "launch", "launch", "launch", "launch", "sync", "launch"]
    assert [event.phase for event in found.classes[0].events if event.kind == "sync"] == ["sync"]
    syncs = [event for one in found.classes for event in one.events if event.kind == "sync"]
    assert {event.phase for event in syncs} == {"sync", "log", "boundary"}
    # What was queued after the wait for the gradient norm is all that is left when the step ends.
    assert {(event.phase, event.back) for event in syncs} <= {("sync", 0), ("log", 0), ("boundary", 0), ("boundary", 1)}
    assert np.concatenate([event.duration for event in syncs]) / MS == pytest.approx(truth.latency, abs=1e-4)


def test_a_host_that_never_blocks_catches_up_at_the_end_of_what_counts() -> None:
    """Warmup, settling and measured steps end when the device has done all but the last of them (5 kernels)."""
    truth = Truth(sync=False, log_every=1000, steps=40, workers=0)
    found = record(oracle.run(truth))
    syncs = [event for one in found.classes for event in one.events if event.kind == "sync"]
    assert sum(len(event.duration) for event in syncs) == 3
    assert {event.back for event in syncs} <= {4, 5}  # 4: nothing to catch up with, and a short copy just done
    assert abs(unedited_error(oracle.run(truth))) < 0.001


def test_host_time_leaves_out_what_is_waited_for() -> None:
    truth = Truth(jitter=0.0, workers=0, steps=20, log_every=100)
    plain = record(oracle.run(truth)).classes[0]
    host = sum(event.duration.mean() for event in plain.events if event.kind == "host") / MS
    phases = truth.host["h2d"] + truth.host["forward"] + truth.host["backward"] + 2 * truth.host["optimizer"]
    assert host == pytest.approx(phases + truth.host["sync"] + 7 * truth.gap, abs=0.001)


@pytest.mark.parametrize("lack", ["steps", "spans", "fetch", "backwards", "measured", "times", "failed"])
def test_a_run_that_cannot_be_replayed_says_why(lack: str) -> None:
    run = oracle.run(Truth(steps=10))
    if lack in ("steps", "spans"):
        run = replace(run, **{lack: None})
    elif lack == "fetch":
        run = replace(run, spans=run.spans.slice(0, 0))
    elif lack == "backwards":  # a phase that ends before it starts
        row = next(i for i, name in enumerate(run.spans.column("name").to_pylist()) if name == "forward")
        ends = run.spans.column("end_ns").to_pylist()
        ends[row] = 0
        index = run.spans.column_names.index("end_ns")
        run = replace(run, spans=run.spans.set_column(index, "end_ns", pa.array(ends)))
    elif lack == "failed":
        run = replace(run, record=replace(run.record, status="failed"))
    else:
        name, value = ("warmup", True) if lack == "measured" else ("start_ns", None)
        index = run.steps.column_names.index(name)
        column = pa.array([value] * run.steps.num_rows, run.steps.schema.field(index).type)
        run = replace(run, steps=run.steps.set_column(index, name, column))
    with pytest.raises(InputError, match=r"^a, block 0: ") as caught:
        record(run)
    assert "\n" not in str(caught.value)


def test_tables_without_cpu_time_are_replayed_too() -> None:
    run = oracle.run(Truth(tokenize=20.0, workers=2, repetitions=4))
    index = run.spans.column_names.index("cpu_ns")
    untold = run.spans.set_column(index, "cpu_ns", pa.nulls(run.spans.num_rows, pa.int64()))
    assert abs(unedited_error(replace(run, spans=untold))) < 0.02


@pytest.mark.parametrize("truth", [Truth(workers=2, steps=30), Truth(asynchronous=False, workers=0, steps=30)])
def test_a_long_run_is_replayed_from_its_beginning(truth: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the same run that ended after so many measured steps: nothing that came later has a part in it."""
    run = oracle.run(truth)
    count = int(np.flatnonzero(~run.steps.column("warmup").to_numpy())[19]) + 1
    last = run.steps.slice(count - 1, 1).to_pylist()[0]
    begun = pc.less(run.spans.column("start_ns"), last["start_ns"] + last["wall_ns"])
    ended = record(RunData(run.record, run.steps.slice(0, count), run.spans.filter(begun), None))
    assert record(oracle.run(truth)).measured.sum() == truth.steps
    monkeypatch.setattr(policy, "REPLAYED_STEPS_MAX", 20)
    cut = record(run)
    assert (int(cut.measured.sum()), len(cut.wall_ns)) == (20, count)
    assert cut.wall_ns.tolist() == ended.wall_ns.tolist()
    assert len(cut.batches.ends_ns) == len(ended.batches.ends_ns) == count
    assert critical_path_ms(cut) == critical_path_ms(ended)
    assert cut.tokens == ended.tokens


def test_predictions_know_nothing_of_warmup_steps() -> None:
    found = record(oracle.run(Truth(warmup=8, log_every=2)))
    never = 1e15
    slow = [
        tuple(
            replace(event, duration=np.where(found.measured[one.steps], event.duration, never)) for event in one.events
        )
        for one in found.classes
    ]
    marked = replace(
        found, classes=tuple(replace(one, events=events) for one, events in zip(found.classes, slow, strict=True))
    )
    mixed = [place for place, one in enumerate(found.classes) if 0 < found.measured[one.steps].sum() < len(one.steps)]
    assert mixed

    def slowest(**how: bool) -> float:
        programs = build(marked, Edits(), **how).programs
        return max(float(programs[place].durations.max()) for place in mixed)

    assert slowest() < never <= slowest(exact=True)
