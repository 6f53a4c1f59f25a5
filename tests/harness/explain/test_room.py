"""How much more the host could do before the device runs dry: that much costs next to nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.explain import policy
from harness.explain.ledger import RunLedger, measure
from harness.explain.policy import ROOM_FELT_SHARE
from tests.cuda_stream import Declared, record
from tests.examples import examples
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth

# 2 ms of launching and 37 ms of work: the optimizer's is queued when the host begins to fetch.
LONG = Declared(
    {
        "h2d": (1, 10, 100),
        "forward": (10, 20, 1000),
        "backward": (20, 20, 900),
        "norm": (2, 20, 500),
        "optimizer": (10, 20, 800),
    },
    data_ms=3,
)


def measured(declared: Declared) -> RunLedger:
    return measure(record(declared).run)


def test_the_tail_behind_the_fetch_is_room() -> None:
    found = measured(LONG)
    assert found.device_slack_ms == pytest.approx(7.8, abs=0.05)  # the host launched 10 kernels meanwhile
    assert found.device_room_ms == pytest.approx(
        4.7 / 0.9, abs=0.05
    )  # until the forward pass is launched; a tenth may be felt
    assert found.bound == "device"


def test_what_is_launched_after_the_fetch_takes_its_share() -> None:
    """A copy that is launched for 4 ms: as much more in every fetch as lay queued when it ended costs 4 ms a step."""
    kernels = LONG.kernels | {"h2d": (1, 4000, 100)}
    found = measured(replace(LONG, kernels=kernels))
    assert found.device_slack_ms == pytest.approx(7.8, abs=0.05)
    assert found.device_room_ms == pytest.approx(0.7 / 0.9, abs=0.05)


def test_every_fourth_batch_that_uses_the_tail_leaves_no_room() -> None:
    """The mean over steps is 3.6 ms; 1 ms more in every batch would cost 0.25."""
    found = measured(replace(LONG, slow=(4, 4.8)))
    assert found.device_slack_ms == pytest.approx(7.8, abs=0.05)
    assert found.device_room_ms == pytest.approx(0, abs=0.1)
    assert found.bound == "balanced"


def test_a_queue_of_many_steps_is_no_room_for_each_of_them() -> None:
    """Nothing blocks: the device gets further and further behind, by 1 ms a step, which is all that a step may add."""
    found = measured(replace(LONG, data_ms=37.1 - 0.86 - 1, check_finite=False))
    assert found.device_slack_ms > 9
    assert found.device_room_ms == pytest.approx(1, abs=0.1)


def test_a_host_that_a_full_queue_may_hold_has_room_that_nobody_knows() -> None:
    """80 kernels, two steps: the host waits within its launches for most of each, and 10 ms more would cost nothing."""
    free = replace(LONG, check_finite=False, queue=80, steps=60)
    found = measured(free)
    assert measured(replace(free, data_ms=13)).mean_step_ms == pytest.approx(found.mean_step_ms, rel=0.001)
    assert math.isnan(found.device_room_ms)
    assert found.bound == "device"


@pytest.mark.parametrize(
    ("pipeline", "at_work"),
    [
        ({"prefetch": 1, "handover": 9.0, "tokenize": 18.0}, 0.67),  # its worker rests while a batch travels
        ({"workers": 3, "tokenize": 140.0, "pass_every": 8, "pass_ms": 300.0}, 0.82),  # works on while others evaluate
        ({"tokenize": 30.0}, 1.0),
    ],
    ids=["travels", "passes", "never rests"],
)
def test_workers_are_at_work_while_they_build_within_a_step(pipeline: dict[str, Any], at_work: float) -> None:
    """92 % of the time, and 203 %, was said of the first two: "its loader workers are at work nearly all the time"."""
    device = {"h2d": 0.2, "forward": 7.0, "backward": 12.0, "norm": 0.5, "optimizer": 2.0}
    truth = Truth(device=device, jitter=0.0, spread=0.0, steps=48).having(**pipeline)
    found = measure(oracle.run(truth))
    assert found.bound_shares.loader == pytest.approx(at_work, abs=0.04)


@example(data_ms=9.0, every=1, longer_ms=20.0, device=1.0, finite=False, copying_ms=6.0, host=3.0)
@example(data_ms=1.0, every=1, longer_ms=11.8125, device=0.5, finite=False, copying_ms=5.5, host=0.3125)  # not known
@given(
    st.floats(0.2, 20),
    st.sampled_from([1, 2, 3, 4, 7, 15]),
    st.floats(0, 20),
    st.floats(0.05, 1.5),
    st.booleans(),
    st.floats(0.02, 6),
    st.floats(0.2, 3),
)
@examples(15)
def test_what_there_is_room_for_costs_next_to_nothing(
    data_ms: float, every: int, longer_ms: float, device: float, finite: bool, copying_ms: float, host: float
) -> None:
    kernels = {name: (count, us * host, work * device) for name, (count, us, work) in LONG.kernels.items()}
    kernels["h2d"] = (1, 1000 * copying_ms, 100)
    declared = replace(LONG, kernels=kernels, data_ms=data_ms, slow=(every, longer_ms), check_finite=finite, steps=40)
    as_it_is = measured(declared)
    room_ms = as_it_is.device_room_ms
    if as_it_is.bound not in ("device", "balanced"):
        return
    if math.isnan(room_ms):  # a queue may have been full: nothing is promised, and no room is denied either
        assert as_it_is.bound == "device"
        return
    with_more = measured(replace(declared, data_ms=data_ms + room_ms))
    assert with_more.mean_step_ms - as_it_is.mean_step_ms <= ROOM_FELT_SHARE * room_ms + 0.05


@pytest.mark.parametrize("data_ms", [36.5, 37.8])
def test_a_host_that_is_slower_than_its_device_is_not_held_by_it(data_ms: float) -> None:
    """The device is behind by the same time at the end of every step, and runs dry in it: no queue was full."""
    slower = replace(LONG, data_ms=data_ms, check_finite=False, steps=30)
    found = measured(slower)
    assert found.device_room_ms == pytest.approx(0, abs=0.1)
    assert found.bound == "balanced"
    later = measured(replace(slower, data_ms=data_ms + 2))
    assert later.mean_step_ms - found.mean_step_ms == pytest.approx(2, abs=0.1)


def test_a_device_that_waits_within_a_copy_is_not_held_behind_a_full_queue() -> None:
    """The copy is launched for 6 ms, and no event shows that the device came to it 0.4 ms before it was launched."""
    kernels = {name: (count, 3.0 * us, work) for name, (count, us, work) in LONG.kernels.items()}
    copied = replace(LONG, kernels=kernels | {"h2d": (1, 6000, 100)}, data_ms=29, check_finite=False, steps=60)
    found = measured(copied)
    assert found.device_room_ms == pytest.approx(0, abs=0.1)
    assert found.bound == "balanced"
    assert measured(replace(copied, data_ms=31)).mean_step_ms - found.mean_step_ms == pytest.approx(2, abs=0.1)


def test_a_few_steps_do_not_tell_a_full_queue() -> None:
    found = measured(replace(LONG, check_finite=False, steps=3))
    assert not math.isnan(found.device_room_ms)


def test_a_long_run_has_the_room_of_its_end_where_that_has_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "ROOM_STEPS_MAX", 20)
    found = measured(replace(LONG, longer=(43, 3.0), steps=80))  # and three to warm up
    assert found.device_room_ms == pytest.approx(1.7 / 0.9, abs=0.05)
