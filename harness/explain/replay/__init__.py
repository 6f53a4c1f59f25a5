"""Simulates the training loop over a run's recorded durations, unedited or with edits, to predict step times.

recording (batches, programs) -> pipeline (edits, costs) -> simulate -> predict (interval and validation error)
"""

from harness.explain.replay.predict import Replays, predict, replace_data, unedited_error
from harness.explain.replay.prediction import Prediction, ReplayValidation
from harness.scenario.edits import Edits, parse_edits

__all__ = [
    "Edits",
    "Prediction",
    "ReplayValidation",
    "Replays",
    "parse_edits",
    "predict",
    "replace_data",
    "unedited_error",
]
