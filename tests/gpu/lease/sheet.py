"""Records what a job measured, in a file that is complete after every figure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

RESULT = "result.json"
DONE, CUT, FAILED = "done", "cut", "failed"


@dataclass(frozen=True)
class Figure:
    """One measured number, beside what was asked of it."""

    name: str
    seen: float | str | None
    """None where it could not be measured."""
    unit: str = ""
    low: float | None = None
    """Lower end of its 95 % interval."""
    high: float | None = None
    asked: str = ""
    """The target, as the issue or a published result states it; empty where there is none."""
    holds: bool | None = None
    """True if the target is met; None where there is none, or where nothing can be said (an emulated device)."""


@dataclass
class Result:
    """What one job left: facts of where it ran, and its figures."""

    job: str
    card: str
    emulated: bool
    date: str
    """ISO date, UTC."""
    commit: str
    torch: str = ""
    cuda: str = ""
    python: str = ""
    status: str = CUT
    """``done``; ``cut`` where a time limit ended it (its figures stay); ``failed``."""
    seconds: float = 0.0
    """Wall time of the job's process."""
    problem: str = ""
    """Last lines of its output where it failed."""
    figures: list[Figure] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write ``folder``/result.json whole, so that a kill leaves the one before."""
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f".{RESULT}"
        new.write_text(json.dumps(asdict(self), indent=1) + "\n")
        new.replace(folder / RESULT)

    @classmethod
    def read(cls, folder: Path) -> Result | None:
        """Return what ``folder`` holds; None where it holds no result, or a damaged one: its job runs again.

        Unknown fields, of a later version, are left out.
        """
        try:
            content: dict[str, Any] = json.loads((folder / RESULT).read_text())
            figures = [Figure(**_known(Figure, one)) for one in content.pop("figures")]
            return cls(**_known(cls, content), figures=figures)
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return None


def _known(kind: type[Any], content: dict[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in content.items() if name in names}


class Sheet:
    """The figures of a running job."""

    def __init__(self, result: Result, folder: Path) -> None:
        self.result = result
        self.is_whole = True
        self._folder = folder

    def add(self, figure: Figure) -> None:
        """Keep ``figure``, on disk before this returns; it is printed too."""
        self.result.figures.append(figure)
        self.result.write(self._folder)
        print(figure, flush=True)
