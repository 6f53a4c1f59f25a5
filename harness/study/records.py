"""Defines study.json and run.json as dataclasses, and validates records that are read back. A field's name is its key.

A later version may add fields with a default: older files are still read, and an older version drops the keys it does
not know (see :meth:`harness.study.store.StudyFolder.read_study`). Of a run's facts both keep unknown keys as they were.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from harness.study.contract import SCHEMA
from harness.study.files import FolderName
from trainer.errors import InputError
from trainer.files import read_json
from trainer.json_types import Json, JsonObject

Record = TypeVar("Record")
_adapters: dict[type, TypeAdapter[Any]] = {}  # making one takes milliseconds


def made_of(kind: type[Record], content: Mapping[str, object]) -> Record:
    """The record of ``kind``, a dataclass, that ``content`` describes; pydantic's ValidationError where it does not.

    Keys that ``kind`` does not have are left out: a later version may have added them.
    """
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # a type checker cannot ask for a dataclass
    record: Record = _adapters[kind].validate_python({key: one for key, one in content.items() if key in known})
    return record


def read_record(path: Path, kind: type[Record], schema: int) -> Record | None:
    """Read a record from a JSON file; None if there is no file. Raises InputError for a damaged one."""
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
    """Where the first thing wrong is, and what is wrong there: ``windows.0: Input should be a valid integer``."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


SmallCount = Annotated[int, Field(ge=0, le=2**24)]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts of one run. None: it has no such fact, or recorded it as null (see ``nulls``)."""

    emulation: str | None = None  # what the emulated device assumes
    profile: str | None = None  # of the device, by its name
    profile_reason: str | None = None  # why it has no profile
    peak_flops_per_s: int | float | None = None
    dtype: str | None = None  # that the peak is of
    peak_source: str | None = None
    peak_measured: bool | None = None
    price_per_hour_usd: int | float | None = None
    parameters: int | None = None
    flops_per_token: int | float | None = None
    flops_convention: str | None = None  # by which they are counted; before there was a choice it was palm
    attention: str | None = None  # its implementation by transformers' name
    measured_compilations: int | None = None  # graphs that torch.compile compiled within measured steps, if any
    vocab_size: int | None = None
    device: str | None = None
    asynchronous: bool | None = None
    emulated: bool | None = None
    device_count: SmallCount | None = None
    threads: SmallCount | None = None
    workers: SmallCount | None = None
    cores: SmallCount | None = None
    # Of training in fp16: optimizer steps that were skipped as gradients overflowed, warm-up steps included.
    skipped_steps: Annotated[int, Field(ge=0)] | None = None
    torch: str | None = None  # its version
    iterable: bool | None = None  # whether the user's dataset has no index: each loader worker then has all of it
    # Number of loader workers with equal first batches; 1: all workers made different ones; None: not compared.
    copies: SmallCount | None = None
    # Number of loader workers of an iterable dataset that ran out of items before their first batch.
    empty_workers: SmallCount | None = None
    tokenizer_fingerprint: str | None = None
    corpus_fingerprint: str | None = None
    tokenizer_engine: str | None = None  # library and version that encodes
    # What that engine proved and how fast others were, in words; None where it is the library of the tokenizer's maker.
    tokenizer_proof: str | None = None
    # Pretokenized data: bytes of its file, and of the documents' text as UTF-8.
    stored_bytes: Annotated[int, Field(ge=0)] | None = None
    text_bytes: Annotated[int, Field(ge=0)] | None = None
    questions_fingerprint: str | None = None  # of the file of multiple-choice questions
    model_fingerprint: str | None = None  # of the code or the files (config, weights) of a model of the user's own
    program_fingerprint: str | None = None  # of a program's own code, without libraries (harness.attach)
    # Of a program that nobody here wrote (harness.attach): what of it was timed, what ended a step, how much of its
    # measured time the main thread was blocked where nothing looked (and mostly where), was ready without a core, or
    # tokenized in no fetch.
    attached: str | None = None
    ranks: SmallCount | None = None  # of its distributed program, or of this trainer
    nodes: SmallCount | None = None  # machines that the ranks were on, if several
    # Of times of ranks on other machines than rank 0's: by how much they may be wrong on its clock (launch.clocks).
    clock_error_ns: Annotated[int, Field(ge=0)] | None = None
    parallel: str | None = None  # ddp or fsdp, of this trainer's ranks
    # Of the last checkpoint: from when its state was copied until it was on the disk.
    checkpoint_writing_ns: Annotated[int, Field(ge=0)] | None = None
    epoch_steps: Annotated[float, Field(gt=0)] | None = None  # steps of an epoch of its data
    # Rows that training got again, by content, among its first 1, 2, 4, ... rows; None: a loss shows what it learned.
    repeated_rows: tuple[SmallCount, ...] | None = None
    parameters_digest: str | None = None  # SHA-256 of what every rank held at the end of the run, found to be the same
    step_ends: str | None = None
    unseen_share: float | None = None
    unseen_place: str | None = None
    waiting_share: float | None = None
    running_share: float | None = None  # share of time that the main thread ran
    tokenizing_share: float | None = None
    restarting_share: float | None = None  # waits in which an epoch ended, or a loader's first batch came anew
    sampling_share: float | None = None  # share of time in a DataLoader's sampler, in the main thread
    persistent_workers: bool | None = None  # true if the workers of a program's DataLoader outlive an epoch
    epoch_ends: Annotated[int, Field(ge=0)] | None = None  # beginnings anew of a DataLoader in measured steps
    evaluating_steps: int | None = None  # left out, as an evaluation ran within; warm-up steps are not among them
    evaluating_share: float | None = None  # of the time of these and the measured steps
    # Of a program: the steps, by number, that are not training alone, as an evaluation ran within or a signal handler
    # of the program raised; warm-up steps are among them.
    marked_steps: tuple[int, ...] | None = None
    # Milliseconds of the whole program by part: see harness.explain.wall.PROGRAM_PARTS. They sum to its wall clock.
    program_ms: dict[str, float] | None = None
    causes: tuple[JsonObject, ...] | None = None  # what slowed the steps of a program: rows of analysis.slow_causes
    nulls: frozenset[str] = frozenset()  # facts that are written even where they are None
    others: JsonObject = field(default_factory=dict)  # of another version, by name

    def to_json(self) -> dict[str, Json]:
        """The facts by name, without those that the run does not have."""
        known = {name: getattr(self, name) for name in NAMES}
        return {**{name: one for name, one in known.items() if one is not None or name in self.nulls}, **self.others}

    @classmethod
    def from_json(cls, content: JsonObject) -> RunFacts:
        """The facts that :meth:`to_json` gave; pydantic's ValidationError where one is of another type."""
        return made_of(cls, _fields_of(content))

    @property
    def times_fetches(self) -> bool:
        """Whether what gives it its data is timed: a program of somebody else may have a way that nobody knows."""
        return self.attached is None or any(part.startswith("fetch") for part in self.attached.split("; "))

    @property
    def has_loader(self) -> bool:
        """True if its batches come from a DataLoader, whose workers can be changed."""
        return self.attached is None or "fetch: DataLoader" in self.attached

    def gave_no_items(self, workers: int) -> bool:
        """True if an iterable dataset had no batch for ``workers`` of the loader's workers.

        This trainer receives the batches of its workers in turn, so that a worker without batches has no items. Of a
        program, only torch's message that a worker ran out of items shows that.
        """
        return bool(self.iterable) if self.attached is None else (self.empty_workers or 0) >= workers

    def only(self, names: Iterable[str]) -> RunFacts:
        """These facts alone, as far as the run has them."""
        found = self.to_json()
        return RunFacts.from_json({name: found[name] for name in names if name in found})


NAMES = tuple(one.name for one in fields(RunFacts) if one.name not in ("nulls", "others"))


def _fields_of(content: JsonObject) -> Mapping[str, object]:
    return {
        **{name: content[name] for name in NAMES if name in content},
        "nulls": {name for name in NAMES if name in content and content[name] is None},
        "others": {name: one for name, one in content.items() if name not in NAMES},
    }


def _from_json(given: object) -> object:
    return _fields_of(given) if isinstance(given, Mapping) else given


# The type of a record's field that holds facts: pydantic reads them from what RunFacts.to_json() gives.
RunFactsField = Annotated[RunFacts, BeforeValidator(_from_json)]


# A JsonObject here has keys that another room defines, maybe in another state of the code: a trainer's configuration
# (trainer.config) and an environment (machine.environment) are written, compared key by key and shown as they are.
# Declared by arms that are programs as they are (harness.scenario.commands), with their values or the whole command.
COMMAND = "command"
ONE_TRAINING = "one training as it is"  # the interleave_reason of what harness train writes, and of nothing else

# Numbers of a recorded configuration that analyses count with. Dotted key: least, most. Wider than what a scenario may
# ask for (trainer.config), which may change.
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
    """``config`` itself; ValueError where one of its numbers is none, or out of its limits."""
    for key, (least, most) in CONFIG_LIMITS.items():
        value = _at(config, key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"{key}: expected a number from {least:g} to {most:g}")
    return config


def _at(config: JsonObject, key: str) -> Json:
    found: Json = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


RunStatus = Literal["done", "failed", "interrupted"]
RecordedConfig = Annotated[JsonObject, AfterValidator(possible)]
BlockNumber = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class RunRecord:
    """run.json: what ran, as it ran (not as it was asked), and how it ended.

    Whatever comes to know more of a run makes a new record with :func:`dataclasses.replace`.
    """

    arm: FolderName
    block: BlockNumber
    status: RunStatus
    # a-a, ideal-data, data-only, dose-<tokenize|read|device>-<k>; for the probes: profiled, bare, with-<probe>
    control: str | None = None
    of: FolderName | None = None  # the arm this control belongs to
    # Runs of one session alternated in time; only these are paired repetition by repetition. It begins with the id of
    # the run's study (session_of), not a field of its own: an older state of the code would refuse to be sent that.
    session: str = ""
    position: int = 0  # place in the block's order
    interleave: str = "runs"  # slices or runs, as used
    pid: int = 0
    started_utc: str = ""
    ended_utc: str = ""
    exit_code: int | None = None
    error: str | None = None
    config: RecordedConfig = field(default_factory=dict)  # resolved trainer configuration
    declared: JsonObject = field(default_factory=dict)  # dotted keys this arm declares, with values
    facts: RunFactsField = field(default_factory=RunFacts)
    environment: JsonObject = field(default_factory=dict)
    realtime_minus_monotonic_ns: int = 0
    # As the launcher saw it from outside, None where it did not: the fork server's imports and everything until
    # the first repetition; the largest resident memory of the run's processes, summed (shared pages count in each).
    startup_ns: int | None = None
    import_ns: int | None = None  # of that: the fork server's imports, which the runs of a block share
    ending_ns: int | None = None  # from when it was told to finish until its process had ended
    peak_memory_bytes: int | None = None
    peak_device_bytes: int | None = None  # CUDA: what torch's allocator held at most
    digests: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by file: harness.study.files
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Json]:
        """The content of run.json."""
        return {**asdict(self), "facts": self.facts.to_json()}

    @classmethod
    def from_json(cls, content: JsonObject) -> RunRecord:
        """The record that :meth:`to_json` gave; pydantic's ValidationError where ``content`` is no such thing."""
        return made_of(cls, content)


@dataclass(frozen=True)
class CodeRecord:
    """A state of the code: ``folder`` holds harness/ and trainer/, ``python`` runs them.

    ``directory``: the working directory of its runs, which holds a state of the user's own code; None: the launcher's.
    ``path``: more folders with code of that state.
    """

    folder: str
    python: str
    label: str  # a commit, with +changes, or a folder's name
    protocol: int = 1  # see launch.protocol; studies recorded before it existed do not say
    directory: str | None = None
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtherDefault:
    """A default that two states of the harness do not share.

    ``lacking``: the side without that key, which always does as with ``base``; the other does as ``asked``.
    """

    key: str
    base: Json = None
    head: Json = None
    lacking: Literal["", "base", "head"] = ""
    asked: tuple[str, ...] = ()
    text: str = ""  # the line that older studies hold instead


def _of_older(value: object) -> object:
    return {"key": "", "text": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class ArmRecord:
    """An arm of study.json, or a control of one. The keys of the second half are left out where they say nothing."""

    name: FolderName
    control: str | None = None
    of: FolderName | None = None  # the arm this control belongs to
    declared: JsonObject = field(default_factory=dict)  # dotted keys, with values
    config: JsonObject = field(default_factory=dict)  # resolved trainer configuration
    contest: str | None = None  # schema 1's word for the comparison of two sides that the arm belongs to
    code: CodeRecord | None = None  # where it runs another state of the code than the launcher's
    environment: JsonObject | None = None  # that state's, where there is one
    other_defaults: tuple[
        Annotated[OtherDefault, BeforeValidator(_of_older)], ...
    ] = ()  # in which the two states differ


@dataclass(frozen=True)
class ComparisonRecord:
    """Two arms to compare, by name (no controls)."""

    baseline: FolderName
    candidate: FolderName


@dataclass(frozen=True)
class StudyRecord:
    """study.json: the scenario as it was resolved, its arms and comparisons, and how the study went."""

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
    fingerprints: dict[str, str] = field(default_factory=dict)  # of every corpus and tokenizer, by what it is
    notes: list[str] = field(default_factory=list)
    id: str = ""  # of this study and of copies of it, whatever their folders are called; older ones have none
    left_out: dict[FolderName, list[str]] = field(default_factory=dict)  # arms that were not run: packages they lack
    schema: int = SCHEMA

    @property
    def is_training(self) -> bool:
        """Whether it is one training (harness train), whose blocks are its parts, from one resumption to the next."""
        return self.interleave_reason == ONE_TRAINING


def new_study_id() -> str:
    """An id that no other study has."""
    return secrets.token_hex(6)


def session_of(study_id: str, name: str) -> str:
    """The session ``name`` of the study with that id; of one without an id the name alone."""
    return f"{study_id}.{name}" if study_id else name


def is_of_study(study_id: str, session: str) -> bool:
    """Whether a run of that session is one of the study with that id; of a study without an id every run is."""
    return session.startswith(session_of(study_id, ""))
