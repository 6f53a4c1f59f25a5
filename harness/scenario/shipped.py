"""Finds what is shipped by its name, wherever the harness is installed: ``quickstart``, scenarios/quickstart.yaml."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from trainer.errors import InputError

_ROOT = Path(__file__).parents[2]
SCENARIOS, SWEEPS, PUBLISHED = _ROOT / "scenarios", _ROOT / "sweeps", _ROOT / "profiles" / "published"


def shipped(folder: Path) -> dict[str, Path]:
    """The YAML files of ``folder``, by name."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(given: str | Path, folder: Path) -> Path:
    """The file ``given``, or the shipped one of that name. A file of the user's comes first.

    Raises InputError for a plain name (no suffix, no folder) that is neither.
    """
    path = Path(given)
    if len(path.parts) != 1 or path.suffix or path.exists():
        return path
    known = shipped(folder)
    if path.name in known:
        return known[path.name]
    near = get_close_matches(path.name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    raise InputError(f"{path}: no such file{hint} shipped: {', '.join(known) or 'none'}")
