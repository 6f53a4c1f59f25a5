"""Tracker for accelerate's Accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker

from harness.attach.hooks import TrainingRecording


class AccelerateTracker(TrainingRecording, GeneralTracker):  # type: ignore[misc]  # as with transformers
    """Tracker that records from ``init_trackers`` to ``end_training``: ``Accelerator(log_with=AccelerateTracker())``.

    ``out``: folder of the study. ``warmup``: unmeasured steps at the start, at least 4.
    """

    name = "harness"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, out: str | Path = "results", *, warmup: int = 5) -> None:
        GeneralTracker.__init__(self, _blank=True)
        TrainingRecording.__init__(self, out, warmup=warmup)

    @property
    def tracker(self) -> Any:
        return self

    def start(self) -> None:
        self.begin()

    def store_init_configuration(self, values: Mapping[str, object]) -> None:
        """Do nothing: a study contains measurements only."""

    def log(self, values: Mapping[str, object], step: int | None = None, **kwargs: Any) -> None:
        """Do nothing: losses stay with the other trackers."""

    def finish(self) -> None:
        self.end()
