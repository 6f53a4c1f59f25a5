"""Stores everything as lines of JSON, one file per study. Needs no library, and any program can read it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from harness.launch.tracking.trackers import MetricRow
from trainer.json_types import Json


class JsonLines:
    """Tracker that writes a new file ``NAME.jsonl`` for each study, with one line per event.

    NAME: the study's own run.
    """

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


def make(folder: Path) -> JsonLines:
    return JsonLines(folder)
