"""Defines the interface of a tracker, lists the known ones, and opens a tracker in its process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from trainer.errors import InputError
from trainer.json_types import Json
from trainer.user_code import call, files


class MetricRow(NamedTuple):
    """Metrics of one step, by name. ``time_ms``: UTC, milliseconds since 1970."""

    step: int
    time_ms: int
    values: Mapping[str, float]


class Tracker(Protocol):
    """Interface of a tracker in its own process, also of a user's own. An exception of a method is only reported."""

    def begin(self, run: str, parent: str | None, parameters: Mapping[str, Json], start_ms: int) -> None:
        """Begin the run named ``run``. ``parent``: name of the study's own run; None for that run itself.

        ``start_ms``: start of the run (UTC, ms since 1970).
        """

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
    """Return why the tracker ``name`` cannot start here: modules that are not installed, and how to install them.

    None if all are installed, and for a user's own tracker.
    """
    lacking = [module for module in NEEDS.get(name, ()) if find_spec(module) is None]
    if not lacking:
        return None
    return f"{', '.join(lacking)} not installed (pip install 'llm-training-harness[{name}]')"


def warn_of_missing(asked: Sequence[str]) -> None:
    """Print a warning for each tracker of ``asked`` that cannot start.

    Call it before the first run, because trackers start after the last one.
    """
    for name in asked:
        reason = missing(name)
        if reason is None and name not in NEEDS:
            try:
                files("track", name)
            except InputError as error:
                reason = str(error).removeprefix(f"track: {name}: ")
        if reason is not None:
            print(f"warning: track: {name} will get nothing: {reason}", file=sys.stderr)


def open_tracker(name: str, folder: Path) -> Tracker:
    """Return the tracker ``name``, which stores into ``folder``: a known one, or the user's own.

    The user's own is named MODULE:FUNCTION; the function is called with ``folder``.
    """
    if name not in NEEDS:
        own: Tracker = call("track", name, {}, {"folder": str(folder)})
        return own
    # Imported here, in the tracker's process only.
    known: Tracker = import_module("harness.launch.tracking.stores").STORES[name](folder)
    return known
