"""Defines the interface of a probe: the methods that a run calls on every probe, and the settings sent to the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from trainer.json_types import Json, JsonObject
from trainer.telemetry import Recorder

if TYPE_CHECKING:
    from harness.study.contract import Columns


@dataclass(frozen=True)
class ProbeSettings:
    """What a probe is to record. Every field is plain JSON, as it travels from the launcher to the run."""

    @classmethod
    def from_json(cls, content: JsonObject) -> Self:
        """Take the fields from ``content``; a missing one has its default, an unknown one is left out."""
        return cls(**{one.name: content[one.name] for one in fields(cls) if one.name in content})

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True)
class ProbeReport:
    """What a probe has to report of a run that is over, besides its tables."""

    problems: Sequence[str] = ()  # what went wrong, a line each, with the fix where there is one
    facts: JsonObject = field(default_factory=dict)  # its part of probes.json
    failed: bool = False  # it recorded nothing; ``problems`` says why


class Pausable(Recorder, Protocol):
    """The ledger's recorder in the main process."""

    def pause(self) -> None:
        """End the open step: what follows until the next step belongs to none."""
        ...


class Probe(Protocol):
    """One probe in the main process of one run. Methods do nothing unless the probe overrides them.

    Subclass it and add a line to ``harness.probes.registry``. A run calls, in this order:

        attach                  before the loader's workers start
        attach_in_worker        in each loader worker
        wait                    after warm-up, before the run says that it is ready
        begin_repetition        before the warm-up steps of a repetition
        begin_steps             before its measured steps
        end_repetition          after its measured steps
        wait                    before the run's processes may be suspended (SIGSTOP)
        close                   once, after the last repetition and after the workers have ended
        tables, report          once, at the end

    Whatever beginning and ending take falls outside the measured steps. A probe that disturbs (``ProbeKind.disturbs``)
    is kept off the measured steps: it gets one call of ``run_window`` in a run of its own, without measured steps.
    Repetitions it sees only where a control measures what the probe costs.
    """

    settings_type: ClassVar[type[ProbeSettings]]

    @classmethod
    def attach(cls, settings: Any, folder: Path) -> Self:
        """Make the probe. ``settings`` is of ``settings_type``; ``folder`` is the run's own, for the probe's files."""
        ...

    @classmethod
    def attach_in_worker(cls, settings: Any, folder: Path, worker_id: int, *, windows: bool) -> None:  # noqa: ARG003
        """Do what the probe needs inside a loader worker, whose stage recorder is attached already.

        ``windows``: whether this is the run in which probes have windows of their own.
        """
        return

    def begin_repetition(self) -> None:
        """Start what takes long to start: the warm-up steps of a repetition follow."""
        return

    def begin_steps(self) -> None:
        """Start to record: measured steps, or another probe's window, follow."""
        return

    def end_repetition(self) -> None:
        """Stop to record: the measured steps are over."""
        return

    def wait(self) -> None:
        """Block until nothing is left to do for the repetition."""
        return

    def run_window(self, next_step: Callable[[], int], recorder: Pausable) -> None:
        """Take as many steps as the probe's window has and record them; ``next_step()`` returns a step's number.

        ``recorder`` is the ledger's: pause it before writing files, so that no step contains that.
        """
        return

    def close(self) -> None:
        """End the probe's processes and collect what they recorded. Harmless when called again."""
        return

    def tables(self) -> Mapping[str, Columns]:
        """Rows for the contract's tables, by the table's name ("samples"); complete after :meth:`close`."""
        return {}

    def report(self) -> ProbeReport:
        """What probes.json keeps of it; complete after :meth:`close`."""
        ...
