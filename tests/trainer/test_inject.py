"""Costs are spent in full, in the currency they were declared in."""

from __future__ import annotations

import time

from trainer.config import ComputeInject, DataInject
from trainer.inject import Injector, spend


def test_busy_burns_cpu_time_of_this_thread_and_sleep_waits() -> None:
    before = time.thread_time_ns()
    spend(3, "busy")
    Injector(DataInject(read_ms=2), seed=1).spend("read")
    assert time.thread_time_ns() - before >= 5_000_000
    wall, cpu = time.monotonic_ns(), time.thread_time_ns()
    spend(20, "sleep")
    assert time.monotonic_ns() - wall >= 20_000_000
    assert time.thread_time_ns() - cpu < 5_000_000


def test_costs_are_found_by_stage_and_by_phase() -> None:
    data = Injector(DataInject(read_ms=1, pack_ms=2), seed=0)
    assert [data.cost_ms(stage) for stage in ("read", "tokenize", "pack", "transfer")] == [1, 0, 2, 0]
    compute = Injector(ComputeInject(forward_ms=3, other_ms=4), seed=0)
    assert [compute.cost_ms(phase) for phase in ("forward", "backward", "other")] == [3, 0, 4]
    assert Injector(None, seed=0).cost_ms("read") == 0


def test_jitter_is_seeded_and_stays_within_its_bounds() -> None:
    def draws(seed: int) -> list[float]:
        injector = Injector(DataInject(read_ms=2, jitter=0.5), seed)
        return [injector.draw_ms("read") for _ in range(200)]

    assert draws(1) == draws(1) != draws(2)
    assert 1 <= min(draws(1)) < 1.2
    assert 2.8 < max(draws(1)) <= 3


def test_an_arm_without_one_cost_has_the_same_draws_for_the_others() -> None:
    both = Injector(DataInject(read_ms=2, tokenize_ms=3, jitter=0.5), seed=1)
    alone = Injector(DataInject(tokenize_ms=3, jitter=0.5), seed=1)
    reads, with_reading = zip(*[(both.draw_ms("read"), both.draw_ms("tokenize")) for _ in range(20)], strict=True)
    assert [alone.draw_ms("tokenize") for _ in range(20)] == list(with_reading)
    assert [one / 2 for one in reads] != [one / 3 for one in with_reading]  # nor are both stages long together
