"""Define study.json and run.json as dataclasses, and validate records that are read back.

A field's name is its key. Later versions may add fields with a default; unknown keys are dropped, but those of a run's
facts kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from harness.study.contract import SCHEMA
from harness.study.files import FolderName
from trainer.errors import InputError
from trainer.files import read_json
from trainer.json_types import Json, JsonObject

Record = TypeVar("Record")
_adapters: dict[type, TypeAdapter[Any]] = {}  # Building an adapter takes milliseconds.


def made_of(kind: type[Record], content: Mapping[str, object]) -> Record:
    """Return ``content`` as ``kind``, without keys of later versions. Raises pydantic's ValidationError."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    names = {declared.name for declared in fields(kind)}  # type: ignore[arg-type]  # kind is a dataclass
    record: Record = _adapters[kind].validate_python({key: value for key, value in content.items() if key in names})
    return record


def read_record(path: Path, kind: type[Record], schema: int) -> Record | None:
    """Read a JSON file as ``kind``; None without a file. Raises InputError if damaged or of another ``schema``."""
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable JSON ({getattr(error, 'strerror', None) or error})") from error
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise InputError(f"{path}: expected an object with schema {schema}")
    try:
        return made_of(kind, content)
    except ValidationError as error:
        raise InputError(f"{path}: {first_fault(error)}") from error


def first_fault(error: ValidationError) -> str:
    """Return place and message of pydantic's first error: ``windows.0: Input should be a valid integer``."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


SmallCount = Annotated[int, Field(ge=0, le=2**24)]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts that a run recorded about itself (such as its device, model and data). None: not recorded, or recorded as
    null; ``nulls`` names the facts that were recorded as null.
    """

    emulation: str | None = None  # assumptions of the emulated device
    profile: str | None = None  # name of the device's profile
    profile_reason: str | None = None  # reason for a missing profile
    peak_flops_per_s: int | float | None = None
    dtype: str | None = None  # number format of the peak
    peak_source: str | None = None
    peak_measured: bool | None = None
    price_per_hour_usd: int | float | None = None
    parameters: int | None = None
    flops_per_token: int | float | None = None
    flops_convention: str | None = None  # rule for counting them; palm in runs without the field
    attention: str | None = None  # its implementation by transformers' name
    measured_compilations: int | None = None  # graphs that torch.compile compiled within measured steps
    vocab_size: int | None = None
    device: str | None = None
    asynchronous: bool | None = None
    emulated: bool | None = None
    device_count: SmallCount | None = None
    threads: SmallCount | None = None
    workers: SmallCount | None = None
    cores: SmallCount | None = None
    # Optimizer steps that fp16 training skipped because gradients overflowed, including warm-up steps.
    skipped_steps: Annotated[int, Field(ge=0)] | None = None
    torch: str | None = None  # version of torch
    iterable: bool | None = None  # True if the user's dataset has no index: each loader worker then has all of it
    # Number of loader workers with equal first batches; 1: all workers made different ones; None: not compared.
    copies: SmallCount | None = None
    # Number of loader workers of an iterable dataset that ran out of items before their first batch.
    empty_workers: SmallCount | None = None
    tokenizer_fingerprint: str | None = None
    corpus_fingerprint: str | None = None
    tokenizer_engine: str | None = None  # library and version that encodes
    # Result of the engine's proof, and the speed of others, as text. None for the library of the tokenizer's maker.
    tokenizer_proof: str | None = None
    # Pretokenized data: bytes of its file, and of the documents' text in UTF-8.
    stored_bytes: Annotated[int, Field(ge=0)] | None = None
    text_bytes: Annotated[int, Field(ge=0)] | None = None
    questions_fingerprint: str | None = None  # fingerprint of the file of multiple-choice questions
    model_fingerprint: str | None = None  # fingerprint of the code or files (config, weights) of a user's own model
    program_fingerprint: str | None = None  # fingerprint of a program's own code, without libraries (harness.attach)
    # Facts of an attached program (harness.attach): its timed parts, the end of a step, and shares of its measured
    # time. The shares cover a main thread that was blocked in unobserved places (and mostly where), ready without a
    # core, or tokenizing outside of fetches.
    attached: str | None = None
    ranks: SmallCount | None = None  # ranks of its distributed program, or of this trainer
    nodes: SmallCount | None = None  # number of machines that the ranks were on, if several
    # Possible error of times of ranks on other machines, on the clock of rank 0's machine (launch.ranks).
    clock_error_ns: Annotated[int, Field(ge=0)] | None = None
    parallel: str | None = None  # ddp or fsdp, for this trainer's ranks
    # Time of the last checkpoint from the copy of its state until it was on the disk.
    checkpoint_writing_ns: Annotated[int, Field(ge=0)] | None = None
    epoch_steps: Annotated[float, Field(gt=0)] | None = None  # steps in an epoch of its data
    # Rows that training received again, by content, among its first 1, 2, 4, ... rows. None: the loss shows what was
    # learned.
    repeated_rows: tuple[SmallCount, ...] | None = None
    # SHA-256 of the parameters at the end of the run, which were the same on every rank
    parameters_digest: str | None = None
    step_ends: str | None = None
    unseen_share: float | None = None
    unseen_place: str | None = None
    waiting_share: float | None = None
    running_share: float | None = None  # share of time that the main thread ran
    tokenizing_share: float | None = None
    iterating_share: float | None = None  # share of time in which a DataLoader started its workers, outside of waits
    restarting_share: float | None = None  # waits in which an epoch ended, or a loader's first batch was loaded anew
    sampling_share: float | None = None  # share of time in a DataLoader's sampler, in the main thread
    persistent_workers: bool | None = None  # True if the workers of a program's DataLoader outlive an epoch
    epoch_ends: Annotated[int, Field(ge=0)] | None = None  # restarts of a DataLoader in measured steps
    # steps left out because of an evaluation within; warm-up steps are not included
    evaluating_steps: int | None = None
    evaluating_share: float | None = None  # share in the time of these and the measured steps
    # Numbers of a program's steps that are not training alone: an evaluation ran within, or a signal handler of the
    # program raised. Includes warm-up steps.
    marked_steps: tuple[int, ...] | None = None
    # Milliseconds of the whole program by part: see harness.explain.wall.PROGRAM_PARTS. They sum to its wall clock.
    program_ms: dict[str, float] | None = None
    thinned_steps: int | None = None  # measured steps of a long program that are in none of its tables
    causes: tuple[JsonObject, ...] | None = None  # causes of slow steps of a program: rows of analysis.slow_causes
    nulls: frozenset[str] = frozenset()  # facts that are written even if they are None
    others: JsonObject = field(default_factory=dict)  # facts of another version, by name

    def to_json(self) -> dict[str, Json]:
        """Return the facts as JSON by name, without those that the run lacks."""
        facts = {name: getattr(self, name) for name in NAMES}
        return {
            **{name: value for name, value in facts.items() if value is not None or name in self.nulls},
            **self.others,
        }

    @classmethod
    def from_json(cls, content: JsonObject) -> RunFacts:
        """Return the facts from the output of :meth:`to_json`. Raises pydantic's ValidationError for a wrong type."""
        return made_of(cls, _fields_of(content))

    @property
    def times_fetches(self) -> bool:
        """True if fetch times were measured; an attached program may get data in a way that is not timed."""
        return self.attached is None or any(part.startswith("fetch") for part in self.attached.split("; "))

    @property
    def has_loader(self) -> bool:
        """True if batches come from a DataLoader, so that its number of workers can be changed."""
        return self.attached is None or "fetch: DataLoader" in self.attached

    def gave_no_items(self, workers: int) -> bool:
        """Return True if ``workers`` idle loader workers made no batch because an iterable dataset had too few items
        for them. In this trainer's own runs: if the dataset is iterable. In an attached program: if at least
        ``workers`` workers are recorded as out of items.
        """
        return bool(self.iterable) if self.attached is None else (self.empty_workers or 0) >= workers

    def only(self, names: Iterable[str]) -> RunFacts:
        """Return a copy with only the facts ``names``, as far as the run has them."""
        facts = self.to_json()
        return RunFacts.from_json({name: facts[name] for name in names if name in facts})


NAMES = tuple(declared.name for declared in fields(RunFacts) if declared.name not in ("nulls", "others"))


def _fields_of(content: JsonObject) -> Mapping[str, object]:
    return {
        **{name: content[name] for name in NAMES if name in content},
        "nulls": {name for name in NAMES if name in content and content[name] is None},
        "others": {name: value for name, value in content.items() if name not in NAMES},
    }


def _from_json(given: object) -> object:
    return _fields_of(given) if isinstance(given, Mapping) else given


# Type of a record's field with facts. pydantic reads them from the output of RunFacts.to_json().
RunFactsField = Annotated[RunFacts, BeforeValidator(_from_json)]


# A JsonObject here has keys that another room defines, maybe in another state of the code. A trainer's configuration
# (trainer.config) and an environment (machine.environment) are written, compared by key and shown unchanged.
#
# Key that arms of unchanged programs declare (harness.scenario.commands), with their values or the whole command:
COMMAND = "command"
ONE_TRAINING = "one training as it is"  # interleave_reason of harness train; no other command writes it

# Limits of numbers of a recorded configuration that analyses use. Dotted key: (least, most). A scenario's limits
# (trainer.config) are narrower and may change.
CONFIG_LIMITS: Mapping[str, tuple[float, float]] = {
    "data.batch_size": (1, 2**24),
    "data.workers": (0, 2**16),
    "data.prefetch": (1, 2**16),
    "data.extra_reads": (0, 2**16),
    "data.extra_tokenizations": (0, 2**16),
    "data.inject.transfer_ms": (0, 1e9),
    "optimizer.accumulation": (1, 2**24),
    "compute.extra_forwards": (0, 2**16),
    "compute.device.speed": (1e-6, 1e9),
    "compute.device.queue_depth": (1, 2**31),
}


def possible(config: JsonObject) -> JsonObject:
    """Return ``config`` unchanged. Raises ValueError if a number in CONFIG_LIMITS is out of range or no number."""
    for key, (least, most) in CONFIG_LIMITS.items():
        value = _at(config, key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"{key}: expected a number from {least:g} to {most:g}")
    return config


def _at(config: JsonObject, key: str) -> Json:
    value: Json = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


RunStatus = Literal["done", "failed", "interrupted"]
RecordedConfig = Annotated[JsonObject, AfterValidator(possible)]
BlockNumber = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class RunRecord:
    """Content of run.json: one run and its result. Add results with :func:`dataclasses.replace`."""

    arm: FolderName
    block: BlockNumber
    status: RunStatus
    # a-a, ideal-data, data-only, dose-<tokenize|read|device>-<k>; for the probes: profiled, bare, with-<probe>
    control: str | None = None
    of: FolderName | None = None  # arm of this control
    # Runs of one session alternated in time. Only these are paired by repetition. It begins with the id of the run's
    # study (session_of). The id is no field of its own, because an older state of the code would refuse it.
    session: str = ""
    position: int = 0  # place in the block's order
    interleave: str = "runs"  # slices or runs, as used
    pid: int = 0
    started_utc: str = ""
    ended_utc: str = ""
    exit_code: int | None = None
    error: str | None = None
    config: RecordedConfig = field(default_factory=dict)  # resolved trainer configuration
    declared: JsonObject = field(default_factory=dict)  # dotted keys that this arm declares, with values
    facts: RunFactsField = field(default_factory=RunFacts)
    environment: JsonObject = field(default_factory=dict)
    realtime_minus_monotonic_ns: int = 0
    # Measured by the launcher, None if not. startup_ns: the fork server's imports and everything until the first
    # repetition. peak_memory_bytes: largest resident memory of the run's processes, summed (shared pages count in
    # each).
    startup_ns: int | None = None
    import_ns: int | None = None  # part of startup_ns: the fork server's imports, which the runs of a block share
    ending_ns: int | None = None  # time between the request to finish and the end of its process
    peak_memory_bytes: int | None = None
    peak_device_bytes: int | None = None  # CUDA: peak memory of torch's allocator
    digests: dict[str, tuple[str, ...]] = field(default_factory=dict)  # key: file name, see harness.study.files
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Json]:
        """Return the record as the content of run.json."""
        return {**asdict(self), "facts": self.facts.to_json()}

    @classmethod
    def from_json(cls, content: JsonObject) -> RunRecord:
        """Return the record from the output of :meth:`to_json`. Raises pydantic's ValidationError for other content."""
        return made_of(cls, content)


@dataclass(frozen=True)
class CodeRecord:
    """A state of the code that an arm runs: ``folder`` has harness/ and trainer/, ``python`` is the interpreter.

    ``directory``: working directory of its runs, with the user's own code; None: as the launcher. ``path``: further
    folders that its runs import the user's code from.
    """

    folder: str
    python: str
    label: str  # a commit, with +changes, or a folder's name
    protocol: int = 1  # see launch.protocol; older studies do not have it
    directory: str | None = None
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtherDefault:
    """A setting whose default differs between base and head of ``harness regress``. ``lacking``: the side whose code
    has no such setting, if any. ``base`` is then the value that this side behaves as if set to, and ``asked`` has the
    values that arms ask for.
    """

    key: str
    base: Json = None
    head: Json = None
    lacking: Literal["", "base", "head"] = ""
    asked: tuple[str, ...] = ()
    text: str = ""  # the line that older studies have instead


def _of_older(value: object) -> object:
    return {"key": "", "text": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class ArmRecord:
    """An arm, or a control of an arm, in study.json. The fields ``contest`` to ``other_defaults`` are not written if
    empty.
    """

    name: FolderName
    control: str | None = None
    of: FolderName | None = None  # arm of this control
    declared: JsonObject = field(default_factory=dict)  # dotted keys, with values
    config: JsonObject = field(default_factory=dict)  # resolved trainer configuration
    contest: str | None = None  # schema 1's word for the comparison of two sides that the arm belongs to
    code: CodeRecord | None = None  # set if it runs another state of the code than the launcher's
    environment: JsonObject | None = None  # environment of that state
    other_defaults: tuple[
        Annotated[OtherDefault, BeforeValidator(_of_older)], ...
    ] = ()  # defaults in which the two states differ


@dataclass(frozen=True)
class ComparisonRecord:
    """Two arms that a study compares, by name. Controls are never compared."""

    baseline: FolderName
    candidate: FolderName


@dataclass(frozen=True)
class StudyRecord:
    """Content of study.json: the resolved scenario, its arms and comparisons, and the study's status."""

    scenario: FolderName
    question: str
    status: Literal["running", "done", "failed", "interrupted"]
    created_utc: str = ""
    ended_utc: str = ""
    command: list[str] = field(default_factory=list)
    scenario_file: str = ""
    scenario_text: JsonObject = field(default_factory=dict)  # the resolved scenario, as plain data
    interleave: str = "runs"
    interleave_reason: str = ""
    blocks: int = 0
    order: list[list[FolderName]] = field(default_factory=list)  # per block, the arms in the order they run
    arms: list[ArmRecord] = field(default_factory=list)
    comparisons: list[ComparisonRecord] = field(default_factory=list)
    environment: JsonObject = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)  # fingerprint of every corpus and tokenizer, by its name
    notes: list[str] = field(default_factory=list)
    id: str = ""  # id of this study and its copies, under any folder name; older studies have none
    # arms that were not run, with the packages they lack
    left_out: dict[FolderName, list[str]] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def is_training(self) -> bool:
        """True for a single training (harness train). Its blocks are its parts, from one resumption to the next."""
        return self.interleave_reason == ONE_TRAINING


def now() -> str:
    """Return the UTC time to the second, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_study_id() -> str:
    """Return a new random id for a study, as 12 hexadecimal digits."""
    return secrets.token_hex(6)


def session_of(study_id: str, name: str) -> str:
    """Return the id of a session (runs whose repetitions may alternate): ``STUDY_ID.NAME``, or only ``name``, its name
    in the study, if the study has no id.
    """
    return f"{study_id}.{name}" if study_id else name


def is_of_study(study_id: str, session: str) -> bool:
    """Return True if a run with ``session`` belongs to the study with ``study_id``. An empty id accepts every run."""
    return session.startswith(session_of(study_id, ""))
