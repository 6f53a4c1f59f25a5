"""Warm-up ends in time: on drawn shapes of a CUDA stream on paper, and in the turns that an H200 recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.gpu.jobs.warmups import warm_up
from tests.recorded_turns import replayed
from tests.studies import unpacked
from tests.warmup_shapes import KINDS, draw_shape, ending_of

SHAPES = [draw_shape(number) for number in range(4 * len(KINDS))]  # python -m tests.warmup_shapes draws 350


@pytest.mark.parametrize("shapes", [SHAPES[::4], pytest.param(SHAPES, marks=(pytest.mark.slow, pytest.mark.nightly))])
def test_measured_steps_are_as_slow_as_those_of_a_long_run_after_a_few_more_steps(shapes) -> None:
    found = [ending_of(*shape) for shape in shapes]
    assert np.mean([one.too_fast for one in found]) <= 0.01
    assert np.percentile([one.too_fast for one in found], 95) <= 0.01
    assert np.percentile([one.extra for one in found], 95) <= 10


@pytest.mark.slow
@pytest.mark.nightly
def test_the_shapes_tell_a_warm_up_that_ends_too_soon() -> None:
    """Without extra steps the host gets ahead of its device within the measured ones."""
    kinds = ("balanced", "device-bound")
    slower = [ending_of(kind, declared, most=0).too_fast for kind, declared in SHAPES if kind in kinds]
    assert np.mean(slower) > 0.01
    assert max(slower) > 0.05


@pytest.mark.parametrize(
    "study", ["compile-gpu", pytest.param("compile-gpu-1b", marks=(pytest.mark.slow, pytest.mark.nightly))]
)
def test_recorded_turns_end_after_a_few_steps_where_the_host_was_already_as_far_ahead_as_later(study, tmp_path) -> None:
    turns = list(replayed(unpacked(study, tmp_path)))
    assert max(one.then for one in turns) == 60
    assert max(one.now for one in turns) <= 4
    assert abs(np.mean([one.too_fast for one in turns])) <= 0.01


@pytest.mark.slow
@pytest.mark.nightly
def test_the_warm_up_of_a_study_is_read_from_its_tables(tmp_path: Path) -> None:
    found = {one.arm: one for one in warm_up(unpacked("compile-gpu", tmp_path))}
    assert sorted(found) == ["compiled", "eager", "eager+a-a"]
    assert found["compiled"].extra == (2, 2, 3, 2, 2, 1, 1, 2)
    assert max(found["eager"].extra) == 60
    for one in found.values():
        assert one.too_fast < 0.01
        assert 0.95 < one.first_over_last < 1.05
