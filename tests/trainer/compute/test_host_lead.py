"""A host that begins on an idle device gets ahead of it step by step: warm-up ends when it is as far as it gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.explain.ledger import measure
from harness.launch.more_warmup import MAX_ADDED_STEPS, most_extra_steps
from tests.cuda_stream import LAUNCH_BOUND, Declared, record
from trainer.compute.host_lead import HostLead
from trainer.config import TrainerConfig

DEVICE_MS, LAUNCHING_MS = 34.0, 24.0
# Few and long kernels. From an idle device the host is ahead by one launch, and by 10 ms more with each step.
BEHIND = Declared(
    {
        "h2d": (1, 25, 25),
        "forward": (10, 700, 1000),
        "backward": (10, 1400, 2000),
        "norm": (1, 25, 25),
        "optimizer": (1, 2500, 3900),
    },
    data_ms=0.4,
    sync="late",
    warmup=1,
    steps=10,
)


def step_ms(declared: Declared) -> float:
    ledger = measure(record(declared).run)
    return ledger.mean_step_ms


def test_steps_from_an_idle_device_are_too_fast_until_the_host_is_as_far_ahead_as_it_gets() -> None:
    assert step_ms(BEHIND) < 0.97 * DEVICE_MS, "the host still gets ahead"
    settled = replace(BEHIND, settle=MAX_ADDED_STEPS)
    assert 0 < record(settled).settling < 8
    assert step_ms(settled) == pytest.approx(DEVICE_MS, rel=0.005)
    assert step_ms(replace(BEHIND, warmup=60)) == pytest.approx(DEVICE_MS, rel=0.005)


@pytest.mark.parametrize(("declared", "most"), [
    (replace(LAUNCH_BOUND, warmup=1, sync="late"), 2),  # the device runs dry in each step
    (replace(BEHIND, sync="norm"), 1),  # the host waits in each step, and is slow in the first
    (replace(BEHIND, sync="norm", check_finite=False, log_every=10), 1),  # it waits at the log lines alone
    (replace(BEHIND, data_ms=40.0), 2),
])  # fmt: skip
def test_loops_whose_steps_are_all_alike_take_next_to_no_more_warm_up(declared: Declared, most: int) -> None:
    assert record(replace(declared, settle=MAX_ADDED_STEPS)).settling <= most


def test_one_step_in_which_the_device_runs_dry_says_nothing_of_the_next_ones() -> None:
    lead = HostLead()
    for step, dry in enumerate((True, True, False, True)):  # the first step finds the device idle in any case
        lead.begin_step(step)
        lead.launched(dry=False)
        lead.launched(dry=dry)
        assert not lead.settled
    lead.begin_step(4)
    lead.launched(dry=True)
    assert lead.settled


def test_a_call_that_returns_at_once_is_no_wait() -> None:
    lead = HostLead()
    lead.begin_step(0)
    lead.waited(10_000)
    assert not lead.settled
    lead.waited(1_000_000)
    assert lead.settled
    lead.device_idle()
    assert not lead.settled


def test_a_device_is_held_for_longer_than_the_fastest_step_once_three_steps_are_known() -> None:
    lead = HostLead()
    for begun in (0, 40):
        lead.begin_step(begun)
        assert lead.hold_ns(begun + 30) is None, "too few steps"
    lead.begin_step(70)
    lead.launched(dry=True)
    lead.launched(dry=True)
    assert lead.hold_ns(120) is None, "the device may run dry in each step"
    lead.begin_step(120)
    assert lead.hold_ns(220) == 45
    assert lead.hold_ns(140) == 30
    assert not lead.settled
    lead.held()
    lead.begin_step(140)
    assert lead.settled
    lead.device_idle()
    assert not lead.settled


@pytest.mark.parametrize(("keys", "most"), [
    ({"compute": {"device": "cpu"}}, 0),
    ({"compute": {"device": "auto"}}, MAX_ADDED_STEPS),
    ({"compute": {"device": {"emulated": "gh200"}}}, MAX_ADDED_STEPS),
])  # fmt: skip
def test_a_cpu_with_batches_made_inline_takes_no_more(keys: dict[str, object], most: int) -> None:
    assert most_extra_steps(TrainerConfig.model_validate(keys)) == most
