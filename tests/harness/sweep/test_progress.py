"""What the line of the running trial says of the time that is left."""

from __future__ import annotations

from harness.sweep.messages import SweepProgress
from harness.sweep.trials import Trial, TrialPlan, TrialStage

TRIAL = Trial(0, TrialPlan(1e-3, 100))


def test_the_time_left_follows_from_the_steps_done_where_all_take_as_long() -> None:
    progress = SweepProgress([TrialStage("grid", 4, 100)], [])
    line = progress.line(TRIAL, 50, 3.25, 10.0)
    assert line.endswith("rate 1.00e-03, step 50 of 100, loss 3.2500 | 10.0 s gone, about 70.0 s left")


def test_of_models_of_several_sizes_the_time_left_is_not_guessed() -> None:
    sizes = [TrialStage("grid", 4, 100, overrides={"model.layers": layers}) for layers in (1, 2)]
    assert SweepProgress(sizes, []).line(TRIAL, 50, None, 10.0).endswith("step 50 of 100 | 10.0 s gone")
