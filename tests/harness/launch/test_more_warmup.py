"""When a repetition takes more warm-up steps: decided from recorded events, and a real run with workers that sleep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launch.more_warmup import MAX_ADDED_STEPS, batches_needed, cycle_steps, lives_off_lead, most_extra_steps
from harness.probes.ledger.rows import ENTER, EXIT, PAUSE, RECEIVED, STEP, UNPACKED, recent_batches
from tests.studies import run_study
from trainer.config import TrainerConfig
from trainer.telemetry import BatchTrace

MS = 1_000_000
READY_STEPS = 7  # of the real runs below: workers x prefetch + 1


def events(
    making: float, consuming: float, steps: int, *, stops: tuple[int, ...] = (), ahead: float = 0.0
) -> list[Any]:
    """What a recorder has of a loop of 2 workers that sleep, with a queue of 2 batches each; in ms.

    ``stops``: steps before which the run stands still for a second, while the sleeps of its workers end.
    ``ahead``: by which the workers began before the loop.
    """
    found: list[tuple[Any, ...]] = []
    ready: list[float] = []
    received: list[float] = []
    now = ahead
    for b in range(steps):
        if b in stops:
            found += [(PAUSE, round(now * MS), ()), (PAUSE, round(now * MS) + 1, ())]  # its end is noted twice
            stopped, now = now, now + 1000
        asked = received[b - 4] if b >= 4 else 0.0
        began = max(asked, ready[b - 2]) if b >= 2 else 0.0
        done = began + making
        for stop in stops:
            # Begun before, or while the run stood still, and over: such a batch is there as the run goes on.
            if b >= stop and began < stopped and done > stopped:
                done = stopped + 1000
        ready.append(done)
        span = ("tokenize", round(began * MS), round(done * MS), None)
        found += [(STEP, round(now * MS), (), b, 0, True), (ENTER, "fetch", round(now * MS), None)]
        waits = done > now
        now = max(now, done)
        found += [(UNPACKED, round(now * MS), round(now * MS), waits), (EXIT, "fetch", round(now * MS), 0)]
        found += [(RECEIVED, BatchTrace(1, 1, f"loader-{b % 2}", b // 2, (span,)), 1, 1, 1)]
        received.append(now)
        found += [(ENTER, "forward", round(now * MS), None), (EXIT, "forward", round((now + consuming) * MS), 0)]
        now += consuming
    return found


def lives(found: list[tuple[Any, ...]]) -> bool:
    return lives_off_lead(recent_batches(found, batches_needed(2, 2)), 2, 2)


@pytest.mark.parametrize(("making", "consuming", "ahead", "expected"), [
    (40.0, 18.0, 1000.0, True),  # what lay ready as it began is used up
    (40.0, 18.0, 0.0, False),  # nothing did
    (40.0, 19.8, 1000.0, False),  # by 1 % of a step
    (40.0, 21.0, 1000.0, False),  # never short
    (40.0, 5.0, 0.0, False),  # always short
])  # fmt: skip
def test_it_lives_off_its_lead_while_that_falls(making: float, consuming: float, ahead: float, expected: bool) -> None:
    assert lives(events(making, consuming, 8, ahead=ahead)) is expected


def test_what_lay_ready_is_used_up_after_some_steps_and_standing_still_is_no_lead() -> None:
    found = [lives(events(40.0, 18.0, steps, ahead=1000.0)) for steps in range(6, 60, 2)]
    assert found[0]
    assert not found[-1]
    assert found == sorted(found, reverse=True)
    assert lives(events(40.0, 18.0, 16, ahead=1000.0, stops=(10,)))  # used up after a suspension
    # What lay ready as the run was suspended lay there no longer than the run ran.
    assert not lives(events(40.0, 21.0, 40 + 2, stops=(40,)))


def test_batches_are_read_from_the_end_and_pauses_with_them() -> None:
    found = events(40.0, 18.0, 12, stops=(10,))
    recent = recent_batches(found, 5)
    assert len(recent.batches) == 5
    assert recent.batches == recent_batches(found, 100).batches[-5:]
    assert [round((until - since) / MS) for since, until in recent.pauses] == [1000]
    assert recent_batches([], 5).batches == []
    made = recent_batches(events(40.0, 18.0, 3), 3).batches
    assert [one.awaited for one in made] == [True, False, True]
    assert made[0].ready == made[0].received == 40 * MS
    unknown = [(ENTER, "fetch", 1, None), (EXIT, "fetch", 2, 0), (RECEIVED, None, 1, 1, 1)]
    assert recent_batches(unknown * 9, 9).batches[0].ready is None
    assert not lives(unknown * 20)


@pytest.mark.parametrize(("keys", "most"), [
    ({"data": {"workers": 2}}, MAX_ADDED_STEPS),
    ({"data": {"workers": 0}, "compute": {"device": "cpu"}}, 0),
    ({"data": {"workers": 2, "prefetch": 1}, "compute": {"device": "cpu"}}, 0),
    ({"data": {"workers": 2}, "launch": {"torchrun": {"nproc": 2}}}, 0),
])  # fmt: skip
def test_which_runs_may_take_more_steps(keys: dict[str, Any], most: int) -> None:
    assert most_extra_steps(TrainerConfig.model_validate(keys)) == most


def test_a_cycle_is_as_many_steps_as_the_workers_take_to_make_a_batch_each() -> None:
    config = {"data": {"workers": 3}, "optimizer": {"accumulation": 2}}
    assert cycle_steps(TrainerConfig.model_validate(config)) == 2


SCENARIO = {
    "name": "sleepers",
    "question": "Is a step as long as its batch takes to make?",
    "base": {
        "data": {"sequence_length": 32, "batch_size": 1, "replay": True, "workers": 2, "prefetch": 3,
                 "inject": {"tokenize_ms": 60.0, "how": "sleep"}},
        # 30 ms a step, and 27 of batches that lie ready, fetch and all.
        "compute": {"work": "none", "inject": {"forward_ms": 24.0, "how": "sleep"}},
        "steps": 40,
        "warmup_steps": 4,
    },
    "arms": {"a": {}, "b": {"seed": 1}},
    "controls": [],
    "compare": [],
    "repeats": 1,
    "slice_steps": 10,
    "probes": {"nvml": False},
}  # fmt: skip


@pytest.mark.slow
def test_a_host_on_an_idle_device_takes_more_warm_up_steps_until_it_is_ahead(tmp_path: Path) -> None:
    """One step from an idle device does not show how far ahead the host gets."""
    scenario = SCENARIO | {
        "base": {
            "model": {"preset": "gpt2-tiny"},
            "data": {"sequence_length": 32, "batch_size": 1, "replay": True, "workers": 0},
            "compute": {"device": {"emulated": "gh200", "kernels": {"forward_ms": 3, "backward_ms": 3}}},
            "log_every": 1000,
            "steps": 16,
            "warmup_steps": 4,
        },
        "arms": {"a": {}},
        "slice_steps": 4,
    }
    for run in run_study(scenario, tmp_path).runs():
        assert run.steps is not None
        warmup = run.steps.column("warmup").to_pylist()
        assert warmup.count(False) == 16
        assert len(warmup) >= 4 + 4 * (1 + 1) + 16  # in each of four slices


@pytest.mark.slow
@pytest.mark.nightly
def test_arms_whose_workers_sleep_take_more_warm_up_steps_in_slices(tmp_path: Path) -> None:
    """Of batches that lie ready a step takes the forward pass alone: of those of the start, and of the sleep of each
    worker, which goes on while the run is suspended. How long steps are then is measured by a campaign (removals).
    """
    steps = 0
    for run in run_study(SCENARIO, tmp_path).runs():
        assert run.steps is not None
        warmup = run.steps.column("warmup").to_pylist()
        assert warmup.count(False) == 40, "the extra steps are warm-up"
        steps += len(warmup)
    assert steps > 2 * (4 + 4 * READY_STEPS + 40), "there were some"
