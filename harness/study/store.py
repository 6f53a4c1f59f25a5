"""The study folder: writes and reads the tables and records of the results contract (schema 1).

Everything is written to a temporary name beside its target and renamed, so a reader never sees half a file.
This module imports pyarrow only when a table is read or written: a plan needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.study.contract import (
    ADDED_COLUMNS,
    ALONE,
    BARE,
    CAUSES,
    LEDGER,
    PHASES,
    PROFILED,
    RUN_FILES,
    SAMPLE_COLUMNS,
    SCHEMA,
    SPAN_COLUMNS,
    STAGES,
    STEP_COLUMNS,
    Columns,
    arrow_schema,
)
from harness.study.records import RunRecord, StudyRecord
from trainer.errors import InputError
from trainer.files import write_atomically, write_bytes, write_text

if TYPE_CHECKING:
    import pyarrow as pa

# Names that were here before they got files of their own; import them from there.
__all__ = [
    "ALONE", "BARE", "CAUSES", "LEDGER", "PHASES", "PROFILED", "RUN_FILES", "SAMPLE_COLUMNS", "SCHEMA", "SPAN_COLUMNS",
    "STAGES", "STEP_COLUMNS", "Columns", "RunData", "RunRecord", "StudyFolder", "StudyRecord", "arrow_schema",
    "read_table", "write_bytes", "write_json", "write_table", "write_text",
]  # fmt: skip

Record = TypeVar("Record", RunRecord, StudyRecord)


@dataclass
class RunData:
    """One run as read back: its record and, where it left them, its tables (None where missing).

    ``probes`` is its probes.json: what went wrong with probes, the windows of those that have some, missed samples.
    """

    record: RunRecord
    steps: pa.Table | None
    spans: pa.Table | None
    samples: pa.Table | None
    probes: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None  # where the profiler's own files lie


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically. NaN and infinity are refused: the contract says null."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False, default=str) + "\n")


def write_table(path: Path, columns: tuple[tuple[str, str], ...], rows: Columns) -> None:
    """Write ``rows`` ({column: list}) as parquet with exactly ``columns``; a missing column is all null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema(columns)
    count = len(next(iter(rows.values()))) if rows else 0
    table = pa.table({name: rows.get(name, [None] * count) for name, _ in columns}, schema=schema)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary))


def read_table(path: Path, columns: tuple[tuple[str, str], ...]) -> pa.Table | None:
    """The table at ``path``; None where there is none; InputError where it is not one of ours."""
    if not path.exists():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not a readable parquet file ({error})") from error
    for name, kind in columns:
        if name in table.column_names:
            continue
        if name not in ADDED_COLUMNS:
            raise InputError(f"{path}: not a results table of schema {SCHEMA}: no column {name!r}")
        table = table.append_column(name, pa.nulls(len(table), pa.type_for_alias(kind)))
    return table


@dataclass(frozen=True)
class StudyFolder:
    """Where each file of a study lies (results/<scenario>/<UTC time>-<id>/)."""

    path: Path

    @property
    def study_json(self) -> Path:
        return self.path / "study.json"

    @property
    def summary_md(self) -> Path:
        return self.path / "summary.md"

    @property
    def summary_json(self) -> Path:
        return self.path / "summary.json"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline.json.gz"

    def run(self, arm: str, block: int) -> Path:
        return self.path / "runs" / arm / str(block)

    def write_study(self, record: StudyRecord) -> None:
        write_json(self.study_json, _study_json(record))

    def read_study(self) -> StudyRecord:
        return _read_record(self.study_json, StudyRecord)

    def write_run(self, record: RunRecord) -> None:
        write_json(self.run(record.arm, record.block) / "run.json", asdict(record))

    def write_tables(self, arm: str, block: int, steps: Columns, spans: Columns, samples: Columns) -> None:
        folder = self.run(arm, block)
        write_table(folder / "steps.parquet", STEP_COLUMNS, steps)
        write_table(folder / "spans.parquet", SPAN_COLUMNS, spans)
        write_table(folder / "samples.parquet", SAMPLE_COLUMNS, samples)

    def write_probes(self, arm: str, block: int, probes: dict[str, Any]) -> None:
        write_json(self.run(arm, block) / "probes.json", probes)

    def read_record(self, arm: str, block: int) -> RunRecord | None:
        """The record of one run; None where there is none, or none that can be read (the run is then done again)."""
        path = self.run(arm, block) / "run.json"
        try:
            return _read_record(path, RunRecord)
        except InputError:
            return None

    def runs(self) -> Iterator[RunData]:
        """Every run that left a run.json, by arm name and block; one with a damaged table counts as failed."""
        from harness.study.probes_json import read_facts

        paths = [path for path in self.path.glob("runs/*/*/run.json") if path.parts[-2].isdecimal()]
        for path in sorted(paths, key=lambda p: (p.parts[-3], int(p.parts[-2]))):
            try:
                record = _read_record(path, RunRecord)
            except InputError as error:
                yield RunData(
                    RunRecord(path.parts[-3], int(path.parts[-2]), "failed", error=str(error)), None, None, None
                )
                continue
            try:
                steps, spans, samples = (
                    read_table(path.with_name(f"{name}.parquet"), columns)
                    for name, columns in (("steps", STEP_COLUMNS), ("spans", SPAN_COLUMNS), ("samples", SAMPLE_COLUMNS))
                )
            except InputError as error:  # one damaged table must not cost the report of all the other runs
                record.status, record.error = "failed", str(error)
                steps = spans = samples = None
            probes = path.with_name("probes.json")
            try:
                found = read_facts(probes) if probes.exists() else {}
            except InputError as error:
                found = {"problems": [str(error)]}
            yield RunData(record, steps, spans, samples, found, path.parent)


def _study_json(record: StudyRecord) -> dict[str, Any]:
    content = asdict(record)
    for arm in content["arms"]:
        for key in ("contest", "code", "environment", "other_defaults"):
            if not arm[key]:  # of an arm that is no side of a regression check
                del arm[key]
    return content


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; is this a study folder (results/<scenario>/<time>-<id>)?") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object")
    return content


def _read_record(path: Path, kind: type[Record]) -> Record:
    """A record from JSON; keys that a later version added are left out, a missing or wrong one is an InputError."""
    from pydantic import ValidationError

    from harness.study.validation import first_fault, made_of

    content = _read_json(path)
    _check_schema(path, content)
    known = {field.name for field in fields(kind)}
    try:
        return made_of(kind, {key: content[key] for key in known & set(content)})
    except ValidationError as error:
        raise InputError(f"{path}: {first_fault(error)}") from error


def _check_schema(path: Path, content: dict[str, Any]) -> None:
    if content.get("schema") != SCHEMA:
        raise InputError(f"{path}: schema {content.get('schema')!r}; this version reads schema {SCHEMA}")
