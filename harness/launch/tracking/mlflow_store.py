"""Stores runs in an embedded MLflow store: one SQLite file and a folder of artifacts, without a server.

``mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db`` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from harness.launch.tracking.trackers import MetricRow
from trainer.json_types import Json

One = TypeVar("One")
_STATUS = {"done": "FINISHED", "failed": "FAILED"}
# Limits of one log_batch (mlflow.utils.validation), and of the length of a parameter value.
_MOST_METRICS, _MOST_PARAMETERS, _LONGEST = 1000, 100, 6000


class MlflowStore:
    """Tracker that writes to MLflow: one experiment per scenario. A study's run is the parent of its arms' runs."""

    def __init__(self, folder: Path) -> None:
        from mlflow import MlflowClient

        folder.mkdir(parents=True, exist_ok=True)
        self._artifacts = (folder / "mlartifacts").absolute().as_uri()
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder.absolute() / 'mlflow.db'}")
        self._ids: dict[str, str] = {}

    def begin(self, run: str, parent: str | None, parameters: Mapping[str, Json], start_ms: int) -> None:
        from mlflow.entities import Param

        scenario = (parent or run).partition("/")[0]
        existing = self._client.get_experiment_by_name(scenario)
        experiment = (
            existing.experiment_id
            if existing is not None
            else self._client.create_experiment(scenario, artifact_location=f"{self._artifacts}/{scenario}")
        )
        tags = {} if parent is None else {"mlflow.parentRunId": self._ids[parent]}
        created = self._client.create_run(experiment, start_time=start_ms, tags=tags, run_name=run)
        self._ids[run] = created.info.run_id
        params = [Param(name, str(value)[:_LONGEST]) for name, value in parameters.items()]
        for chunk in _cut(params, _MOST_PARAMETERS):
            self._client.log_batch(self._ids[run], params=chunk)

    def metrics(self, run: str, rows: Sequence[MetricRow]) -> None:
        from mlflow.entities import Metric

        entries = [Metric(name, value, row.time_ms, row.step) for row in rows for name, value in row.values.items()]
        for chunk in _cut(entries, _MOST_METRICS):
            self._client.log_batch(self._ids[run], metrics=chunk)

    def attach(self, run: str, files: Sequence[Path]) -> None:
        for path in files:
            self._client.log_artifact(self._ids[run], str(path), "plots" if path.suffix == ".png" else None)

    def end(self, run: str, status: str) -> None:
        self._client.set_terminated(self._ids[run], _STATUS.get(status, "KILLED"))

    def close(self) -> None:
        pass


def _cut(items: Sequence[One], most: int) -> Iterator[list[One]]:
    rest = iter(items)
    while chunk := list(islice(rest, most)):
        yield chunk


def make(folder: Path) -> MlflowStore:
    return MlflowStore(folder)
