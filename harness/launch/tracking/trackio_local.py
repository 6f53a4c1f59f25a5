"""Stores runs in Trackio's local database (``TRACKIO_DIR``, set by the feed). ``trackio show`` displays them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.launch.tracking.trackers import MetricRow
from trainer.json_types import Json


class TrackioLocal:
    """Tracker that writes to Trackio: one project per scenario and one group per study.

    Trackio can open one run at a time. So the study's own run is opened twice.
    """

    def __init__(self, folder: Path) -> None:
        import trackio

        self._trackio: Any = trackio
        self._open: str | None = None

    def begin(self, run: str, parent: str | None, parameters: Mapping[str, Json], start_ms: int) -> None:
        study = parent or run
        self._trackio.init(
            project=study.partition("/")[0],
            name=run if parent is None else f"{study.rpartition('/')[2]}/{run}",
            group=study.rpartition("/")[2],
            config=dict(parameters),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._open = run

    def metrics(self, run: str, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            self._trackio.log(dict(row.values), step=row.step)

    def attach(self, run: str, files: Sequence[Path]) -> None:
        if self._open != run:
            self._finish()
            self.begin(run, None, {}, 0)
        attached = {f"plots/{path.stem}": self._trackio.Image(str(path)) for path in files if path.suffix == ".png"}
        pages = [path for path in files if path.suffix == ".md"]
        attached |= {path.stem: self._trackio.Markdown(path.read_text(encoding="utf-8")) for path in pages}
        self._trackio.log(attached)

    def end(self, run: str, status: str) -> None:
        self._finish()

    def close(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if self._open is not None:
            self._trackio.finish()
            self._open = None


def make(folder: Path) -> TrackioLocal:
    return TrackioLocal(folder)
