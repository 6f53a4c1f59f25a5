"""The critical path: of pipelines whose bottleneck is plain, and that its links always sum to the steps."""

from __future__ import annotations

import pytest
from hypothesis import given

from harness.explain.replay.attribution import TRANSFER, PathLink, critical_path_ms
from harness.explain.replay.predict import unedited_error
from harness.explain.replay.recording import record
from tests.examples import examples
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth
from tests.harness.explain.replay.test_oracle import pipelines

STEADY = {"spread": 0.0, "jitter": 0.0, "steps": 60, "log_every": 1000}


@examples(20, derandomize=True)
@given(pipelines())
def test_the_links_sum_to_the_step(truth: Truth) -> None:
    run = oracle.run(truth.having(steps=40))
    found = critical_path_ms(record(run))
    assert min(found.values()) > 0
    replayed = oracle.step_ms(run) * (1 + unedited_error(run))
    assert sum(found.values()) == pytest.approx(replayed, rel=1e-9)


def test_a_slow_worker_is_the_path_with_all_its_stages() -> None:
    found = critical_path_ms(record(oracle.run(Truth(workers=1, read=30.0, tokenize=5.0, pack=3.0, **STEADY))))
    for stage, cost in (("read", 30.0), ("tokenize", 5.0), ("pack", 3.0)):
        assert found[PathLink("stage", stage)] == pytest.approx(cost, rel=0.05)
    assert sum(spent for link, spent in found.items() if link.kind == "kernel") < 1


def test_a_fast_worker_is_not_on_it_and_the_device_is() -> None:
    truth = Truth(workers=2, tokenize=2.0, sync=False, **STEADY)
    found = critical_path_ms(record(oracle.run(truth)))
    kernels = {link.name: spent for link, spent in found.items() if link.kind == "kernel"}
    assert kernels == pytest.approx(truth.device, rel=0.05)
    assert sum(spent for link, spent in found.items() if link.kind == "stage") < 0.5


def test_inline_data_behind_a_busy_device_is_not_on_it() -> None:
    """The host blocks until the norm is known, then fetches 2 ms behind 9 ms of optimizer."""
    device = {"h2d": 0.2, "forward": 4.0, "backward": 8.0, "norm": 0.5, "optimizer": 9.0}
    hidden = critical_path_ms(record(oracle.run(Truth(workers=0, tokenize=2.0, device=device, **STEADY))))
    assert hidden.get(PathLink("stage", "tokenize"), 0.0) < 0.1
    assert hidden[PathLink("kernel", "optimizer")] == pytest.approx(9.0, rel=0.05)
    late = critical_path_ms(record(oracle.run(Truth(workers=0, tokenize=20.0, device=device, **STEADY))))
    assert late[PathLink("stage", "tokenize")] == pytest.approx(20.0, rel=0.05)
    assert late.get(PathLink("kernel", "optimizer"), 0.0) < 0.5


def test_a_slow_hand_over_is_transfer() -> None:
    found = critical_path_ms(record(oracle.run(Truth(workers=1, prefetch=1, asynchronous=False, after=25.0, **STEADY))))
    assert found[TRANSFER] > 20
