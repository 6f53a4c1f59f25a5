"""Known truth: a replay of drawn steps lasts as long as the run whose steps it draws, however that run ends."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.explain.replay.predict import Replays
from harness.study.store import StudyFolder
from tests.cuda_stream import LAUNCH_BOUND, record

RECORDED = Path(__file__).parents[4] / "results" / "reference" / "gpu" / "h200" / "known-truth" / "study-0.tar.xz"
WARMUP = 3


@pytest.mark.parametrize("steps", [58, 71])
def test_a_run_whose_last_steps_are_slower_is_drawn_with_them(steps: int) -> None:
    declared = replace(LAUNCH_BOUND, steps=steps, warmup=WARMUP, longer=(WARMUP + round(0.8 * steps), 6.0))
    found = Replays([record(declared).run]).validation
    assert found.median == pytest.approx(0.0, abs=1e-4)
    assert found.resampled_median == pytest.approx(0.0, abs=0.011)


@pytest.mark.slow
@pytest.mark.nightly
def test_turns_on_a_card_are_drawn_with_the_slowest_one(tmp_path: Path) -> None:
    """The host of these runs was up to a half slower in its last turn than in its first one."""
    with tarfile.open(RECORDED) as packed:
        packed.extractall(tmp_path, filter="data")
    runs = {run.record.arm: run for run in StudyFolder(tmp_path).runs()}
    for arm in ("launch-inline", "launch-inline-norm", "launch-fed", "none-launch-norm"):
        assert Replays([runs[arm]]).validation.resampled_median == pytest.approx(0.0, abs=0.02), arm
