"""Defines the interface of a tracker, lists the known ones, and opens a tracker in its process.

The known ones store runs in local files: ``jsonl`` (one per study, without a library), ``mlflow`` (SQLite and a folder
of artifacts), ``tensorboard`` (event files), ``trackio`` (its local database), and ``wandb`` (offline files, which only
``wandb sync FOLDER/wandb/offline-run-*`` sends).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO, TypeVar

from trainer.errors import InputError
from trainer.json_types import Json
from trainer.user_code import call, files

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class MetricRow(NamedTuple):
    """Metrics of one step, by name. ``time_ms``: UTC, milliseconds since 1970."""

    step: int
    time_ms: int
    values: Mapping[str, float]


class Tracker(Protocol):
    """Interface of a tracker in its own process, also of a user's own. An exception of a method is only reported."""

    def begin(self, run: str, parent: str | None, parameters: Mapping[str, Json], start_ms: int) -> None:
        """Begin ``run``. ``parent``: the study's own run; None for itself. ``start_ms``: UTC since 1970."""

    def metrics(self, run: str, rows: Sequence[MetricRow]) -> None: ...

    def attach(self, run: str, files: Sequence[Path]) -> None:
        """Store ``files`` (report and pictures) with the run named ``run``."""

    def end(self, run: str, status: str) -> None:
        """End the run named ``run``. ``status``: done, failed or interrupted."""

    def close(self) -> None: ...


# Modules that each known tracker needs. The pip extra of the same name installs them.
NEEDS: dict[str, tuple[str, ...]] = {
    "jsonl": (),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}


def missing(name: str) -> str | None:
    """Return why ``name`` cannot start here, and what to install; None if it can, or for a user's tracker."""
    lacking = [module for module in NEEDS.get(name, ()) if find_spec(module) is None]
    if not lacking:
        return None
    return f"{', '.join(lacking)} not installed (pip install 'llm-training-harness[{name}]')"


def warn_of_missing(asked: Sequence[str]) -> None:
    """Print a warning for each tracker that cannot start, before the first run: they start after the last."""
    for name in asked:
        reason = missing(name)
        if reason is None and name not in NEEDS:
            try:
                files("track", name)
            except InputError as error:
                reason = str(error).removeprefix(f"track: {name}: ")
        if reason is not None:
            print(f"warning: track: {name} gets no data: {reason}", file=sys.stderr)


def open_tracker(name: str, folder: Path) -> Tracker:
    """Return the tracker ``name`` (known, or MODULE:FUNCTION of the user), which stores into ``folder``."""
    if name not in NEEDS:
        own: Tracker = call("track", name, {}, {"folder": str(folder)})
        return own
    return STORES[name](folder)


class JsonLines:
    """Tracker that writes ``NAME.jsonl`` for each study (NAME: its own run), one line per event."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: TextIO | None = None

    def begin(self, run: str, parent: str | None, parameters: Mapping[str, Json], start_ms: int) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / f"{(parent or run).replace('/', '-')}.jsonl").open("w", encoding="utf-8")
        self._write({"event": "begin", "run": run, "parent": parent, "t_ms": start_ms, "parameters": dict(parameters)})

    def metrics(self, run: str, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            # JSON has neither NaN nor infinity.
            values: dict[str, Json] = {
                name: value if math.isfinite(value) else str(value) for name, value in row.values.items()
            }
            self._write({"event": "metrics", "run": run, "step": row.step, "t_ms": row.time_ms, **values})

    def attach(self, run: str, files: Sequence[Path]) -> None:
        self._write({"event": "attach", "run": run, "files": [str(path) for path in files]})

    def end(self, run: str, status: str) -> None:
        self._write({"event": "end", "run": run, "status": status})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, content: Mapping[str, Json]) -> None:
        assert self._file is not None, "begin comes first"
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()


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


class TrackioLocal:
    """Tracker that writes to Trackio: a project per scenario, a group per study, one open run at a time."""

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


STORES: Mapping[str, Callable[[Path], Tracker]] = {
    "jsonl": JsonLines,
    "mlflow": MlflowStore,
    "tensorboard": TensorBoardFiles,
    "wandb": WandbOffline,
    "trackio": TrackioLocal,
}
