"""Stores runs as offline files of Weights & Biases. Only ``wandb sync FOLDER/wandb/offline-run-*`` sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.launch.tracking.trackers import MetricRow
from trainer.json_types import Json


class WandbOffline:
    """Tracker that writes offline files of Weights & Biases: one project per scenario and one group per study."""

    def __init__(self, folder: Path) -> None:
        import wandb

        self._wandb: Any = wandb
        self._folder = folder
        self._runs: dict[str, Any] = {}

    def begin(self, run: str, parent: str | None, parameters: Mapping[str, Json], start_ms: int) -> None:
        study = parent or run
        self._runs[run] = self._wandb.init(
            project=study.partition("/")[0],
            name=run,
            group=study.replace("/", "-"),
            config=dict(parameters),
            dir=str(self._folder),
            mode="offline",
            reinit="create_new",
            settings=self._wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False),
        )

    def metrics(self, run: str, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            self._runs[run].log(dict(row.values), step=row.step)

    def attach(self, run: str, files: Sequence[Path]) -> None:
        for path in files:
            if path.suffix == ".png":
                self._runs[run].log({f"plots/{path.stem}": self._wandb.Image(str(path))})
            elif path.suffix == ".html":
                self._runs[run].log({path.stem: self._wandb.Html(path.read_text(encoding="utf-8"), inject=False)})

    def end(self, run: str, status: str) -> None:
        self._runs.pop(run).finish(exit_code=0 if status == "done" else 1)

    def close(self) -> None:
        for run in self._runs.values():
            run.finish(exit_code=1)


def make(folder: Path) -> WandbOffline:
    return WandbOffline(folder)
