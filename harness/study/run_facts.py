"""What a run tells about itself: the model it trained, the device it computed on, and what it was fed with.

The entry "facts" of run.json. A study of an older version lacks some facts, one of a newer version has others: reading
and writing keeps both as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated

from pydantic import BeforeValidator, Field

from harness.study.validation import made_of
from trainer.json_types import Json, JsonObject

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
    parameters_digest: str | None = None  # SHA-256 of what every rank held at the end of the run, found to be the same
    step_ends: str | None = None
    unseen_share: float | None = None
    unseen_place: str | None = None
    waiting_share: float | None = None
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
