"""The results contract (schema 1): tables, records and the study folder where probes, analysis and report meet.

Everything is written to a temporary name beside its target and renamed, so a reader never sees half a file.
This module imports pyarrow only when a table is read or written: a plan needs neither.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from harness.study.probes_json import ProbesRecord, read_facts
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 1
PHASES = ("fetch", "h2d", "forward", "backward", "optimizer", "sync", "log", "other")
STAGES = ("read", "tokenize", "pack", "transfer")
# What the host did while an asynchronous device had nothing to do; python: launching, and whatever has no other name.
CAUSES = (*STAGES, "python", "sync", "checkpoint", "log")

# (column, Arrow type). *_ns are nanoseconds. A null means "not measured here", never zero.
STEP_COLUMNS: tuple[tuple[str, str], ...] = (
    ("step", "int64"),
    ("turn", "int32"),  # which turn of the run the step belongs to (always 0 with interleave: runs)
    ("warmup", "bool"),
    ("start_ns", "int64"),  # CLOCK_MONOTONIC
    ("wall_ns", "int64"),
    *((f"{phase}_ns", "int64") for phase in PHASES),  # these sum to wall_ns exactly
    ("device_busy_ns", "int64"),
    ("device_starved_ns", "int64"),
    ("device_slack_ns", "int64"),  # work still queued on the device when the host began its (first) fetch
    *((f"starved_{cause}_ns", "int64") for cause in CAUSES),  # these sum to device_starved_ns
    ("contended_ns", "int64"),
    *((f"exposed_{stage}_ns", "int64") for stage in STAGES),  # these sum to fetch_ns
    *((f"hidden_{stage}_ns", "int64") for stage in STAGES),
    ("tokens", "int64"),
    ("trained_tokens", "int64"),
    ("samples", "int64"),
    ("loss", "float64"),
)
SPAN_COLUMNS: tuple[tuple[str, str], ...] = (
    ("pid", "int64"),
    ("tid", "int64"),
    # main: phases; main or loader-K: stages; device: what the device did; launch: when the host queued that, in the
    # same order; sync: blocking calls of the main thread
    ("role", "string"),
    ("rank", "int32"),
    ("name", "string"),  # a phase, a stage, a kernel (role device, launch) or the call site of a blocking call
    ("batch", "int64"),  # batches in the order the main thread received them, from 0; -1 where none
    ("start_ns", "int64"),
    ("end_ns", "int64"),
    ("cpu_ns", "int64"),  # CPU time of its thread in between; of phases and stages
)
# Columns that came later: a table without them is read as not having measured them.
ADDED_COLUMNS = {"device_slack_ns", "cpu_ns", *(f"starved_{cause}_ns" for cause in CAUSES)}
SAMPLE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("t_ns", "int64"),
    ("source", "string"),
    ("metric", "string"),
    ("value", "float64"),
    ("unit", "string"),
)
Columns = dict[str, list[Any]]

# What a run may leave, besides its log; of loader worker K: torch_profile.loader-K.json.gz.
RUN_FILES = (
    "run.json", "steps.parquet", "spans.parquet", "samples.parquet", "probes.json",
    "torch_profile.json.gz", "stacks.trace.json.gz", "stacks.speedscope.json", "stacks.svg",
)  # fmt: skip

# Controls that are there for the probes, see harness.launch.probing: the run of an arm that is looked into rather than
# measured; what the cost of probes is measured against; and what a control with one probe alone begins with.
PROFILED, BARE, LEDGER, ALONE = "profiled", "bare", "with-ledger", "with-"

RunStatus = Literal["done", "failed", "interrupted"]


@dataclass
class RunRecord:
    """run.json: what ran, as it ran (not as it was asked), and how it ended."""

    arm: str
    block: int
    status: RunStatus
    # a-a, ideal-data, data-only, dose-<tokenize|read|device>-<k>; for the probes: profiled, bare, with-<probe>
    control: str | None = None
    of: str | None = None  # the arm this control belongs to
    session: str = ""  # runs of one session alternated in time; only these are paired turn by turn
    position: int = 0  # place in the block's order
    interleave: str = "runs"  # slices or runs, as used
    pid: int = 0
    started_utc: str = ""
    ended_utc: str = ""
    exit_code: int | None = None
    error: str | None = None
    config: dict[str, Any] = field(default_factory=dict)  # resolved trainer configuration
    declared: dict[str, Any] = field(default_factory=dict)  # dotted keys this arm declares, with values
    facts: dict[str, Any] = field(default_factory=dict)  # from the trainer: parameters, flops_per_token, device, ...
    environment: dict[str, Any] = field(default_factory=dict)
    realtime_minus_monotonic_ns: int = 0
    # As the parent saw it from outside, None where it did not: the template's imports and everything until the first
    # turn; the largest resident memory of the run's processes, summed (pages that they share count in each).
    startup_ns: int | None = None
    peak_memory_bytes: int | None = None
    peak_device_bytes: int | None = None  # CUDA: what torch's allocator held at most
    schema: int = SCHEMA


@dataclass
class StudyRecord:
    """study.json: the scenario as it was resolved, its arms and comparisons, and how the study went."""

    scenario: str
    question: str
    status: Literal["running", "done", "failed", "interrupted"]
    created_utc: str = ""
    ended_utc: str = ""
    command: list[str] = field(default_factory=list)
    scenario_file: str = ""
    scenario_text: dict[str, Any] = field(default_factory=dict)  # the resolved scenario, as plain data
    interleave: str = "runs"
    interleave_reason: str = ""
    blocks: int = 0
    order: list[list[str]] = field(default_factory=list)  # per block, the arms in the order they run
    # name, control, of, declared, config; contest: what it is one side of; code: where it runs other code than this;
    # other_defaults: what that code and its base have for keys that nobody declared
    arms: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[dict[str, str]] = field(default_factory=list)  # baseline, candidate
    environment: dict[str, Any] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)  # of every corpus and tokenizer, by what it is
    notes: list[str] = field(default_factory=list)
    schema: int = SCHEMA


@dataclass
class RunData:
    """One run as read back: its record and, where it left them, its tables (None where missing).

    ``probes`` is its probes.json, empty where there is none.
    """

    record: RunRecord
    steps: pa.Table | None
    spans: pa.Table | None
    samples: pa.Table | None
    probes: ProbesRecord = field(default_factory=ProbesRecord)
    folder: Path | None = None  # where the profiler's own files lie


Record = TypeVar("Record", RunRecord, StudyRecord)


def arrow_schema(columns: tuple[tuple[str, str], ...]) -> pa.Schema:
    """The Arrow schema of one of the contract's tables, tagged with the contract's version."""
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns], {"harness_schema": str(SCHEMA)})


def _write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically, creating its folder."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    _write_atomically(path, write)


def write_text(path: Path, content: str) -> None:
    """Write ``content`` to ``path`` atomically as UTF-8, creating its folder."""
    write_bytes(path, content.encode())


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
    _write_atomically(path, lambda temporary: pq.write_table(table, temporary))


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
        write_json(self.study_json, asdict(record))

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
                found = read_facts(probes) if probes.exists() else ProbesRecord()
            except InputError as error:
                found = ProbesRecord(problems=(str(error),))
            yield RunData(record, steps, spans, samples, found, path.parent)


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
