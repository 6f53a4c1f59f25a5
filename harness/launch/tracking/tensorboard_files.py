"""Writes TensorBoard event files, one folder per run. ``tensorboard --logdir FOLDER`` shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.launch.tracking.trackers import MetricRow
from trainer.json_types import Json

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardFiles:
    """Tracker that writes TensorBoard files with torch's writer, which needs only the tensorboard package."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, SummaryWriter] = {}

    def begin(self, run: str, parent: str | None, parameters: Mapping[str, Json], start_ms: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = self._folder / run if parent is None else self._folder / parent / run
        writer = self._writers[run] = SummaryWriter(str(folder))
        text = "\n".join(f"    {name}: {json.dumps(value)}" for name, value in parameters.items())
        writer.add_text("parameters", text, 0, start_ms / 1e3)

    def metrics(self, run: str, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            for name, value in row.values.items():
                self._writers[run].add_scalar(name, value, row.step, row.time_ms / 1e3)

    def attach(self, run: str, files: Sequence[Path]) -> None:
        from matplotlib.image import imread

        writer = self._writers[run]
        for path in files:
            if path.suffix == ".png":
                writer.add_image(path.stem, imread(path)[:, :, :3], dataformats="HWC")
            elif path.suffix == ".md":
                writer.add_text(path.stem, path.read_text(encoding="utf-8"))

    def end(self, run: str, status: str) -> None:
        self._writers[run].close()

    def close(self) -> None:
        pass


def make(folder: Path) -> TensorBoardFiles:
    return TensorBoardFiles(folder)
