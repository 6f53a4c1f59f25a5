"""Writes and reads a study's folder: the tables and records of the results contract (schema 1).

Everything is written to a temporary name beside its target and renamed, so a reader never sees half a file.
This module imports pyarrow only when a table is read or written: a plan needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.study.contract import (
    SAMPLE_COLUMNS,
    SCHEMA,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    Columns,
    arrow_schema,
)
from harness.study.probes_json import ProbesRecord, read_facts
from harness.study.records import RunRecord, StudyRecord
from harness.study.run_data import RunData, StoredTable
from trainer.errors import InputError
from trainer.files import read_json, temporary_path, write_atomically, write_text
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 1 << 18  # rows at most: a reader who wants some steps reads the row groups that have them

Record = TypeVar("Record", RunRecord, StudyRecord)


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically. NaN and infinity are refused: the contract says null."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False, default=str) + "\n")


def make_table(columns: tuple[tuple[str, str], ...], rows: Columns) -> pa.Table:
    """``rows`` ({column: values}) as a table with exactly ``columns``; a missing column is all null."""
    import pyarrow as pa

    count = len(next(iter(rows.values()))) if rows else 0
    given = {name: rows.get(name, pa.nulls(count, pa.type_for_alias(kind))) for name, kind in columns}
    return pa.table(given, schema=arrow_schema(columns))


def write_table(path: Path, columns: tuple[tuple[str, str], ...], rows: Columns) -> None:
    """Write ``rows`` ({column: values}) as parquet with exactly ``columns``; a missing column is all null."""
    _write_parquet(path, make_table(columns, rows))


def read_table(path: Path, columns: tuple[tuple[str, str], ...]) -> pa.Table | None:
    """The table at ``path``; None where there is none; InputError where it is not one of ours."""
    return StoredTable(path, columns).read() if path.exists() else None


class TableFile:
    """A table that is written in portions: each is on disk, and out of memory, when :meth:`append` returns."""

    def __init__(self, path: Path, columns: tuple[tuple[str, str], ...]) -> None:
        self._path, self._columns = path, columns
        self._temporary = temporary_path(path)
        self._writer: Any = None

    def append(self, rows: Columns) -> None:
        """Add rows ({column: values}); a missing column is all null."""
        import pyarrow.parquet as pq

        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._temporary, arrow_schema(self._columns))
        self._writer.write_table(make_table(self._columns, rows), ROW_GROUP)

    def close(self) -> None:
        """Give the file its name: until then nobody sees it."""
        if self._writer is None:
            self.append({})
        self._writer.close()
        self._temporary.replace(self._path)

    def discard(self) -> None:
        """Leave nothing; harmless after :meth:`close`."""
        if self._writer is not None:
            self._writer.close()
        self._temporary.unlink(missing_ok=True)


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
    def summary_html(self) -> Path:
        return self.path / "summary.html"

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
        write_json(self.run(record.arm, record.block) / "run.json", record.to_json())

    def write_tables(self, arm: str, block: int, steps: Columns, spans: Columns, samples: Columns) -> None:
        folder = self.run(arm, block)
        write_table(folder / "steps.parquet", STEP_COLUMNS, steps)
        write_table(folder / "spans.parquet", SPAN_COLUMNS, spans)
        self.write_samples(arm, block, samples)

    def write_samples(self, arm: str, block: int, samples: Columns) -> None:
        write_table(self.run(arm, block) / "samples.parquet", SAMPLE_COLUMNS, samples)

    def write_steps(self, arm: str, block: int, steps: pa.Table) -> None:
        """Replace a run's steps table by ``steps``, which has the contract's columns, and maybe others."""
        contract = arrow_schema(STEP_COLUMNS)
        others = [name for name in steps.column_names if name not in contract.names]  # of a later version, or a user's
        table = steps.select(contract.names).cast(contract)
        for name in others:
            table = table.append_column(name, steps.column(name))
        _write_parquet(self.run(arm, block) / "steps.parquet", table)

    def write_probes(self, arm: str, block: int, probes: JsonObject) -> None:
        write_json(self.run(arm, block) / "probes.json", probes)

    def is_done(self, arm: str, block: int) -> bool:
        """Whether that run has finished, and what it measured is still there."""
        record = self.read_record(arm, block)
        return record is not None and record.status == "done" and (self.run(arm, block) / "steps.parquet").exists()

    def read_record(self, arm: str, block: int) -> RunRecord | None:
        """The record of one run; None where there is none, or none that can be read (the run is then done again)."""
        path = self.run(arm, block) / "run.json"
        try:
            return _read_record(path, RunRecord)
        except InputError:
            return None

    def runs(self) -> Iterator[RunData]:
        """Every run that left a run.json, by arm and block; one whose table is damaged or gone counts as failed."""
        paths = [path for path in self.path.glob("runs/*/*/run.json") if path.parts[-2].isdecimal()]
        for path in sorted(paths, key=lambda p: (p.parts[-3], int(p.parts[-2]))):
            try:
                record = _read_record(path, RunRecord)
            except InputError as error:
                yield RunData(
                    RunRecord(path.parts[-3], int(path.parts[-2]), "failed", error=str(error)), None, None, None
                )
                continue
            tables: dict[str, StoredTable | None] = {}
            try:
                for name, columns in (("steps", STEP_COLUMNS), ("spans", SPAN_COLUMNS), ("samples", SAMPLE_COLUMNS)):
                    file = path.with_name(f"{name}.parquet")
                    tables[name] = table = StoredTable(file, columns) if file.exists() else None
                    if table is not None:
                        table.check()
                if tables["steps"] is None and record.status == "done":  # which is said last: deleted since
                    raise InputError("it was done, but its steps.parquet is gone")
            except InputError as error:  # one damaged table must not cost the report of all the other runs
                record = replace(record, status="failed", error=str(error))
                tables = dict.fromkeys(("steps", "spans", "samples"))
            probes = path.with_name("probes.json")
            try:
                found = read_facts(probes) if probes.exists() else ProbesRecord()
            except InputError as error:
                found = ProbesRecord(problems=(str(error),))
            yield RunData(record, tables["steps"], tables["spans"], tables["samples"], found, path.parent)


def _write_parquet(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    write_atomically(path, lambda temporary: pq.write_table(table, temporary, ROW_GROUP))


def _study_json(record: StudyRecord) -> JsonObject:
    content = asdict(record)
    for arm in content["arms"]:
        for key in ("contest", "code", "environment", "other_defaults"):
            if not arm[key]:  # of an arm that is no side of a regression check
                del arm[key]
    return content


def _read_json(path: Path) -> JsonObject:
    try:
        content = read_json(path)
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
    try:
        return made_of(kind, content)
    except ValidationError as error:
        raise InputError(f"{path}: {first_fault(error)}") from error


def _check_schema(path: Path, content: JsonObject) -> None:
    if content.get("schema") != SCHEMA:
        raise InputError(f"{path}: schema {content.get('schema')!r}; this version reads schema {SCHEMA}")
