"""Finds a file by its name: ``mine`` is mine.yaml in the current folder, ``quickstart`` a shipped file."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from trainer.errors import InputError

_ROOT = Path(__file__).parents[2]
SCENARIOS, SWEEPS, PUBLISHED = _ROOT / "scenarios", _ROOT / "sweeps", _ROOT / "profiles" / "published"


def shipped(folder: Path) -> dict[str, Path]:
    """Return the YAML files of ``folder``, by name without suffix."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(given: str | Path, folder: Path) -> Path:
    """Return the file ``given``, ``given``.yaml in the current folder, or the file of that name in ``folder``.

    They are tried in this order. Raises InputError for a plain name (no suffix, no folder) that is none of them.
    Other paths are returned unchecked.
    """
    path = Path(given)
    if len(path.parts) != 1 or path.suffix or path.is_file():
        return path
    if (local := path.with_suffix(".yaml")).is_file():
        return local
    paths = shipped(folder)
    if path.name in paths:
        return paths[path.name]
    if path.exists():  # a folder; the reader of the path refuses it
        return path
    near = get_close_matches(path.name, paths, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    raise InputError(f"{path}: no such file{hint} shipped: {', '.join(paths) or 'none'}")
