"""Write and read a study's folder (schema 1). Files are renamed into place: a reader never sees half of one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from harness.study import files
from harness.study.contract import (
    EVALUATION_COLUMNS,
    PROFILED,
    RAW,
    SAMPLE_COLUMNS,
    SCHEMA,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    Columns,
    arrow_schema,
)
from harness.study.records import RunRecord, StudyRecord, first_fault, is_of_study, made_of
from harness.study.run_data import ProbesRecord, RunData, read_facts
from harness.study.tables import StoredTable, with_run, write_parquet, write_table
from trainer.errors import InputError
from trainer.files import read_json, remove_leftovers, write_atomically, write_text
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

Record = TypeVar("Record", RunRecord, StudyRecord)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON atomically. Raises ValueError for NaN and infinity; the contract requires null."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False, default=str) + "\n")


class _StudyFile:
    """Path of a file or folder of this name in a study's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: StudyFolder, owner: type) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class StudyFolder:
    """The folder of one study (results/<scenario>/<UTC time>-<id>/), with methods to read and write its files."""

    path: Path

    study_json = _StudyFile("study.json")
    summary_md, summary_html, summary_json = (
        _StudyFile("summary.md"),
        _StudyFile("summary.html"),
        _StudyFile("summary.json"),
    )
    plots, timeline = _StudyFile("plots"), _StudyFile("timeline.json.gz")

    def run(self, arm: str, block: int) -> Path:
        """Return the folder of a run, runs/ARM/BLOCK. Raises InputError if ``arm`` is no name of a single folder."""
        return self.path / "runs" / files.check_folder_name(arm, f"{self.path}: arm") / f"{block:d}"

    def run_json(self, arm: str, block: int) -> Path:
        return self.run(arm, block) / "run.json"

    def remove_leftovers(self) -> None:
        """Remove incomplete temporary files that killed processes left in the study's folder."""
        for folder in (self.path, self.plots, *self.path.glob("runs/*/*/")):
            remove_leftovers(folder)

    def write_study(self, record: StudyRecord) -> None:
        write_json(self.study_json, files.sealed(_study_json(record)))

    def read_study(self) -> StudyRecord:
        """Read study.json. Call it before other files of the study are read: it refuses a study that contains symbolic
        links. Raises InputError for these, and if study.json is damaged.
        """
        record = _record_of(self.study_json, _read_json(self.study_json), StudyRecord)
        files.check_no_links(self.path)
        return record

    def write_run(self, record: RunRecord) -> None:
        write_json(self.run(record.arm, record.block) / "run.json", files.sealed(record.to_json()))

    def write_whole_run(self, record: RunRecord) -> None:
        """Write run.json with the digests of all other files of the run. Call it when these are written."""
        self.write_run(replace(record, digests=files.digests_of(self.run(record.arm, record.block))))

    def write_tables(self, arm: str, block: int, steps: Columns, spans: Columns, samples: Columns) -> None:
        folder = self.run(arm, block)
        write_table(folder / "steps.parquet", STEP_COLUMNS, steps)
        write_table(folder / "spans.parquet", SPAN_COLUMNS, spans)
        self.write_samples(arm, block, samples)

    def write_samples(self, arm: str, block: int, samples: Columns) -> None:
        write_table(self.run(arm, block) / "samples.parquet", SAMPLE_COLUMNS, samples)

    def write_steps(self, record: RunRecord, steps: pa.Table) -> None:
        """Replace a run's steps table (the contract's columns and maybe others), and update its digest."""
        contract = arrow_schema(STEP_COLUMNS)
        # columns of a later version, or of a user
        extra = [name for name in steps.column_names if name not in contract.names]
        table = steps.select(contract.names).cast(contract)
        for name in extra:
            table = table.append_column(name, steps.column(name))
        path = self.run(record.arm, record.block) / "steps.parquet"
        table = with_run(path, table)
        recorded = record.digests.get(path.name)
        if recorded is None:  # an older study without digests
            write_atomically(path, lambda temporary: write_parquet(temporary, table))
            return

        def write(temporary: Path) -> None:
            write_parquet(temporary, table)
            self._expect(record, path, (*recorded, files.digest(temporary)))

        write_atomically(path, write)
        self._expect(record, path, (files.digest(path),))

    def _intact(self, path: Path, record: RunRecord) -> tuple[_Tables, RunRecord]:
        """Return a run's tables and record. If a check fails and another report has replaced a table meanwhile
        (run.json has new digests), both are read again. Raises InputError for damage.
        """
        try:
            return _tables(path.parent, record), record
        except InputError:
            reread = self._read_run(path)  # Another report may have replaced a table since the record was read.
            if reread.digests == record.digests:
                raise
            return _tables(path.parent, reread), reread

    def _expect(self, record: RunRecord, path: Path, digests: tuple[str, ...]) -> None:
        """Write ``digests`` of the file ``path`` to run.json, as those that the file may have: one, or two (old and
        new) while the file is replaced.
        """
        run_json = path.with_name("run.json")
        write_json(run_json, {**_read_json(run_json), "digests": {**record.digests, path.name: digests}})

    def write_probes(self, arm: str, block: int, probes: JsonObject) -> None:
        write_json(self.run(arm, block) / "probes.json", probes)

    def is_done(self, arm: str, block: int) -> bool:
        """Return True if the run has finished, has steps, and its files are unchanged. It then need not be repeated."""
        record = self.read_record(arm, block)
        if record is None or record.status != "done":
            return False
        folder = self.run(arm, block)
        try:
            files.check(folder, record.digests, record.digests)
            return _tables(folder, record).steps is not None
        except InputError:
            return False

    def read_record(self, arm: str, block: int) -> RunRecord | None:
        """Return the record of one run; None if it is missing or unreadable (the run is then repeated)."""
        try:
            return self.intact_record(arm, block)
        except InputError:
            return None

    def intact_record(self, arm: str, block: int) -> RunRecord:
        """Return the record of one run. Raises InputError if it is missing, damaged, or of another run or study."""
        return self._read_run(self.run_json(arm, block))

    def _read_run(self, path: Path) -> RunRecord:
        """Return the record in run.json. Raises InputError if it is damaged or of another run or study, or if a table
        exists that its list of files lacks.
        """
        content = _read_json(path)
        record, place = _record_of(path, content, RunRecord), "/".join(path.parts[-3:-1])
        # Files written by the record's names would go to the folder of another run.
        if f"{record.arm}/{record.block}" != place:
            raise InputError(f"{path}: it is the record of {record.arm}/{record.block}, but in the folder of {place}")
        study_id = _study_id(self.study_json)
        if not is_of_study(study_id, record.session):
            raise InputError(
                f"{path}: it is a run of another study (its session is {record.session!r}, this study's id {study_id})"
            )
        if files.seals_digests(content):
            for name in (f"{table}.parquet" for table in COLUMNS):
                if name not in record.digests and (path.parent / name).exists():
                    raise InputError(
                        f"{path.parent / name}: the run did not write this file: run.json has no SHA-256 of it (key "
                        f"digests). If it was added on purpose, remove the key {files.CONTENT} of run.json"
                    )
        return record

    def runs(self) -> Iterator[RunData]:
        """Yield every run with a run.json, by arm and block. A damaged or missing table makes a run failed."""
        windows: dict[str, RunData] = {}
        runs = list(self._runs(windows))
        for run in runs:
            if run.record.status == "done" and run.probes.torch_profiler is not None:
                arm = run.record.of if run.record.control == PROFILED else run.record.arm
                windows.setdefault(arm or run.record.arm, run)
        yield from runs

    def _runs(self, windows: Mapping[str, RunData]) -> Iterator[RunData]:
        paths = [path for path in self.path.glob("runs/*/*/run.json") if _of_a_run(path)]
        for path in sorted(paths, key=lambda p: (p.parts[-3], int(p.parts[-2]))):
            try:
                record = self._read_run(path)
            except InputError as error:
                yield RunData(
                    RunRecord(path.parts[-3], int(path.parts[-2]), "failed", error=str(error)), None, None, None
                )
                continue
            folder = path.parent
            try:
                tables, record = self._intact(path, record)
                if tables.steps is None and record.status == "done":  # Reported last: the table was deleted since.
                    raise InputError("it was done, but its steps.parquet is missing")
            except InputError as error:  # One damaged table must not prevent the report of all other runs.
                record = replace(record, status="failed", error=str(error))
                tables = _Tables()
            evaluations = None if tables.evaluations is None else tables.evaluations.read()
            yield RunData(record, *tables[:3], _probes(folder, record), folder, evaluations, windows)


def find_study(path: Path) -> Path:
    """Return ``path`` if it is a study, else the newest study below it (of results/<scenario>), else ``path``."""
    if StudyFolder(path).study_json.exists():
        return path
    dated = (study_json.parent for study_json in path.glob("[0-9]*T[0-9]*Z-*/study.json"))
    return max(dated, key=lambda folder: folder.name, default=path)


class _Tables(NamedTuple):
    """The tables of a run on disk. A missing table is None."""

    steps: StoredTable | None = None
    spans: StoredTable | None = None
    samples: StoredTable | None = None
    evaluations: StoredTable | None = None


COLUMNS = {"steps": STEP_COLUMNS, "spans": SPAN_COLUMNS, "samples": SAMPLE_COLUMNS, "evaluations": EVALUATION_COLUMNS}


def _tables(folder: Path, record: RunRecord) -> _Tables:
    """Return the tables in the run's ``folder``. Raises InputError if one is damaged or differs from its digest."""
    tables: dict[str, StoredTable] = {}
    for name, columns in COLUMNS.items():
        file = folder / f"{name}.parquet"
        recorded = record.digests.keys() & {file.name}
        files.check(folder, record.digests, recorded)
        if file.exists():
            tables[name] = StoredTable(file, columns)
            tables[name].check(as_written=bool(recorded))
    return _Tables(**tables)


def _probes(folder: Path, record: RunRecord) -> ProbesRecord:
    """Return the content of a run's probes.json. Each damaged file of a probe adds a line to ``problems`` in it."""
    path = folder / "probes.json"
    probe_files = record.digests.keys() - {path.name, *(f"{name}.parquet" for name in COLUMNS)}
    problems = []
    for name in [*(record.digests.keys() & {path.name}), *sorted(probe_files)]:
        try:
            files.check(folder, record.digests, [name])
        except InputError as error:
            problems.append(str(error))
    if problems and path.name in problems[0]:
        return ProbesRecord(problems=tuple(problems))
    try:
        probes = read_facts(path) if path.exists() else ProbesRecord()
    except InputError as error:
        probes = ProbesRecord(problems=(str(error),))
    return replace(probes, problems=(*probes.problems, *problems))


def _study_json(record: StudyRecord) -> JsonObject:
    content = asdict(record)
    for arm in content["arms"]:
        for key in ("contest", "code", "environment", "other_defaults"):
            if not arm[key]:  # Arms outside of a regression check have none of these.
                del arm[key]
        for key in ("directory", "path"):
            if "code" in arm and not arm["code"][key]:  # Only a state of the user's own code has these.
                del arm["code"][key]
    for key in ("id", "left_out"):  # Studies of older versions have none.
        if not content[key]:
            del content[key]
    return content


def _study_id(study_json: Path) -> str:
    """Return the id in study.json; "" if it is missing or unreadable, which :meth:`read_study` reports."""
    try:
        stat = study_json.stat()
    except OSError:
        return ""
    return _id_in(study_json, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)  # Cached, because it is called once per run.
def _id_in(study_json: Path, *_which: int) -> str:
    """Return the id in study.json, or "". ``_which``: state of the file, as key of the cache."""
    try:
        study_id = _read_json(study_json).get("id")
    except InputError:
        return ""
    return study_id if isinstance(study_id, str) else ""


def _read_json(path: Path) -> JsonObject:
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        raw = path.parent / RAW
        hint = "is this a study folder (results/<scenario>/<time>-<id>)?"
        if path.name == "study.json" and raw.is_dir():
            hint = f"harness exec still runs, or was killed: then harness exec --recorded {raw} makes the study"
        raise InputError(f"{path}: no such file; {hint}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable JSON ({getattr(error, 'strerror', None) or error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object")
    return content


def _record_of(path: Path, content: JsonObject, kind: type[Record]) -> Record:
    """Return ``content`` as ``kind``, without unknown keys. Raises InputError for wrong values, schema or digest."""
    from pydantic import ValidationError

    if content.get("schema") != SCHEMA:
        raise InputError(f"{path}: schema {content.get('schema')!r}; this version reads schema {SCHEMA}")
    try:
        record = made_of(kind, content)
    except ValidationError as error:
        raise InputError(f"{path}: {first_fault(error)}") from error
    files.check_sealed(path, content)  # The errors above say more, so they come first.
    return record


def _of_a_run(path: Path) -> bool:
    """Return True if ``path`` has the form runs/<arm>/<block>/run.json that :meth:`StudyFolder.run` produces."""
    arm, block = path.parts[-3:-1]
    with suppress(ValueError):
        return block.isdecimal() and str(int(block)) == block and files.folder_name(arm) == arm
    return False
