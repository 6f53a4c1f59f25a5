"""Names the trackers that are known, what each needs, and how the process of one finds it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from trainer.errors import InputError
from trainer.json_types import Json
from trainer.user_code import call, files


class MetricRow(NamedTuple):
    """The values of one step. ``time_ms``: UTC, milliseconds since 1970."""

    step: int
    time_ms: int
    values: Mapping[str, float]


class Tracker(Protocol):
    """Interface of a tracker in its own process. Its exceptions are reported and stop nothing."""

    def begin(self, run: str, parent: str | None, parameters: Mapping[str, Json], start_ms: int) -> None:
        """A run begins. ``parent``: the name of the study's own run, which has no parent."""

    def metrics(self, run: str, rows: Sequence[MetricRow]) -> None: ...

    def attach(self, run: str, files: Sequence[Path]) -> None:
        """Keep these files with the run: its report and pictures."""

    def end(self, run: str, status: str) -> None:
        """``status``: done, failed or interrupted."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class TrackerKind:
    """A tracker that comes with this project. ``needs``: modules that its extra of the same name installs."""

    module: str
    needs: tuple[str, ...] = ()


_HERE = "harness.launch.tracking"
KINDS = {
    "jsonl": TrackerKind(f"{_HERE}.jsonl"),
    "mlflow": TrackerKind(f"{_HERE}.mlflow_store", ("mlflow", "sqlalchemy", "alembic")),
    "tensorboard": TrackerKind(f"{_HERE}.tensorboard_files", ("tensorboard",)),
    "wandb": TrackerKind(f"{_HERE}.wandb_offline", ("wandb",)),
    "trackio": TrackerKind(f"{_HERE}.trackio_local", ("trackio",)),
}


def missing(name: str) -> str | None:
    """Return why that tracker cannot start here; None if nothing is known to be missing."""
    kind = KINDS.get(name)
    lacking = [module for module in kind.needs if find_spec(module) is None] if kind is not None else []
    if not lacking:
        return None
    return f"{', '.join(lacking)} not installed (pip install 'llm-training-harness[{name}]')"


def warn_of_missing(asked: Sequence[str]) -> None:
    """Say before anything runs which trackers will get nothing: they are started when all of it is over."""
    for name in asked:
        why = missing(name)
        if why is None and name not in KINDS:
            try:
                files("track", name)
            except InputError as error:
                why = str(error).removeprefix(f"track: {name}: ")
        if why is not None:
            print(f"warning: track: {name} will get nothing: {why}", file=sys.stderr)


def open_tracker(name: str, folder: Path) -> Tracker:
    """The tracker of that name, or the user's own (MODULE:FUNCTION, called with ``folder``)."""
    kind = KINDS.get(name)
    made: Tracker = (
        call("track", name, {}, {"folder": str(folder)}) if kind is None else import_module(kind.module).make(folder)
    )
    return made
