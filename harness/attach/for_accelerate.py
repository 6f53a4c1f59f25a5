"""A tracker for the Accelerator of accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker

from harness.attach.callbacks import TrainingRecording


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]  # as with transformers
    """Records from ``init_trackers`` to ``end_training``: ``Accelerator(log_with=AccelerateTracker())``.

    ``out``: where the study goes; ``warmup``: steps at the beginning that are not measured, at least 4.
    """

    name = "harness"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, out: str | Path = "results", *, warmup: int = 5) -> None:
        super().__init__(_blank=True)
        self._recording = TrainingRecording(out, warmup)

    @property
    def study(self) -> Path | None:
        """The study's folder, once the training has ended."""
        return self._recording.study

    @property
    def tracker(self) -> Any:
        return self._recording

    def start(self) -> None:
        self._recording.begin()

    def store_init_configuration(self, values: Mapping[str, object]) -> None:
        """Keep nothing: a study holds what was measured."""

    def log(self, values: Mapping[str, object], step: int | None = None, **kwargs: Any) -> None:
        """Log nothing: losses stay with the other trackers."""

    def finish(self) -> None:
        self._recording.end()
