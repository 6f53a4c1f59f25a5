"""Reads the learning rate that a sweep chose from its report."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from harness.sweep.store import SweepFolder
from trainer.errors import InputError
from trainer.files import expanded, read_json, shell_word
from trainer.json_types import JsonObject


def chosen_rate(place: str, option: str) -> tuple[float, Path]:
    """Return the learning rate that a sweep chose, and the sweep's folder.

    ``place``: that folder, or a folder with several sweeps, of which the newest counts. Raises InputError, which names
    ``option``, if there is no sweep, if it is not done, or if it chose no rate.
    """
    root = expanded(place)
    folders = (
        [root] if _summary(root).is_file() else sorted(path for path in root.glob("*") if _summary(path).is_file())
    )
    if not folders:
        raise InputError(
            f"{option} {place}: no sweep with a report lies there; give the folder that harness sweep names"
        )
    folder = folders[-1]  # Folder names begin with the time of the sweep's start.
    try:
        summary = cast(JsonObject, read_json(_summary(folder)))
        status, chosen = summary["status"], cast("JsonObject | None", summary["chosen"])
        rate = None if chosen is None else float(cast(float, chosen["learning_rate"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{_summary(folder)}: no report of a sweep ({error})") from error
    if status != "done":
        raise InputError(
            f"{option} {folder}: the sweep is not done ({status}); complete it: harness sweep --resume "
            f"{shell_word(folder)}"
        )
    if rate is None:
        raise InputError(
            f"{option} {folder}: the sweep chose no learning rate; its {SweepFolder(folder).summary_md.name} says why"
        )
    return rate, folder


def _summary(folder: Path) -> Path:
    return SweepFolder(folder).summary_json
