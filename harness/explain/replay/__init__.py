"""Simulates the training loop over the recorded durations of a run, unedited or with edits, to predict step times.

``recording`` turns a run's tables into durations (``batches``) and programs of the host (``programs``).
``pipeline`` applies edits to them, and ``simulate`` runs them.
``predict`` returns an interval and its validation error.
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
