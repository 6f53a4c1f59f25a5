"""Tracker for accelerate's Accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker

from harness.attach.hooks import TrainingRecording


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]  # as with transformers
    """Tracker that records from ``init_trackers`` to ``end_training``: ``Accelerator(log_with=AccelerateTracker())``.

    ``out``: folder of the study. ``warmup``: unmeasured steps at the start, at least 4.
    """

    name = "harness"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, out: str | Path = "results", *, warmup: int = 5) -> None:
        super().__init__(_blank=True)
        self._recording = TrainingRecording(out, warmup)

    @property
    def study(self) -> Path | None:
        """Folder of the study, once the training has ended; None before, and if no step was recorded."""
        return self._recording.study

    @property
    def tracker(self) -> Any:
        return self._recording

    def start(self) -> None:
        self._recording.begin()

    def store_init_configuration(self, values: Mapping[str, object]) -> None:
        """Do nothing: a study contains measurements only."""

    def log(self, values: Mapping[str, object], step: int | None = None, **kwargs: Any) -> None:
        """Do nothing: losses stay with the other trackers."""

    def finish(self) -> None:
        self._recording.end()
