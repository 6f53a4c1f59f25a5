"""Defines the records of a study: study.json and run.json as dataclasses. A field's name is its JSON key.

A later version may add fields with a default: older files are still read, and an older version drops what it does not
know (see :meth:`harness.study.store.StudyFolder.read_study`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.study.contract import SCHEMA
from harness.study.names import FolderName
from harness.study.run_facts import RunFacts, RunFactsField
from harness.study.validation import made_of
from trainer.json_types import Json, JsonObject

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
    digests: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by file: harness.study.digests
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
