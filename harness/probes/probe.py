"""Define the interface of a probe: the methods that a run calls on every probe, and the settings sent to the run."""

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
    """Base class for the settings of a probe. Every field is plain JSON: the launcher sends the settings to the run."""

    @classmethod
    def from_json(cls, content: JsonObject) -> Self:
        """Return settings from ``content``: defaults for missing fields; unknown fields are ignored."""
        return cls(**{setting.name: content[setting.name] for setting in fields(cls) if setting.name in content})

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True)
class ProbeReport:
    """Report of one probe about a finished run: problems and facts for probes.json. Its samples are in its tables."""

    problems: Sequence[str] = ()  # one line per problem, with the fix if there is one
    facts: JsonObject = field(default_factory=dict)  # entries for probes.json
    failed: bool = False  # True if nothing was recorded; ``problems`` contains the reason


class Probe(Protocol):
    """One probe in the main process of one run. Methods do nothing unless the probe overrides them.

    Subclass it and add a line to ``harness.probes.run_probes``. A run calls, in this order:

        attach                  before the loader's workers start
        attach_in_worker        in each loader worker
        wait                    after warm-up, before the run says that it is ready
        begin_repetition        before the warm-up steps of a repetition
        begin_steps             before its measured steps
        end_repetition          after its measured steps
        wait                    before the run's processes may be suspended (SIGSTOP)
        close                   once, after the last repetition and after the workers have ended
        tables, report          once, at the end

    Beginning and ending a probe happens outside the measured steps. A probe that disturbs (``ProbeKind.disturbs``) gets
    one call of ``run_window``, in a separate run without measured steps. It sees repetitions only in a control that
    measures the probe's cost.
    """

    settings_type: ClassVar[type[ProbeSettings]]

    @classmethod
    def attach(cls, settings: Any, folder: Path) -> Self:
        """Return the probe, attached to the main process. ``folder``: the run's folder, for the probe's files."""
        ...

    @classmethod
    def attach_in_worker(cls, settings: Any, folder: Path, worker_id: int, *, windows: bool) -> None:  # noqa: ARG003
        """Prepare the probe in a loader worker. ``windows``: True in the run of the disturbing probes' windows."""
        return

    def begin_repetition(self) -> None:
        """Start the parts of the probe that take long to start. The warm-up steps of a repetition follow."""
        return

    def begin_steps(self) -> None:
        """Start to record. Measured steps, or another probe's window, follow."""
        return

    def end_repetition(self) -> None:
        """Stop recording. The measured steps are over."""
        return

    def wait(self) -> None:
        """Block until the probe has finished all work for the last repetition, so that the run may be suspended."""
        return

    def run_window(self, next_step: Callable[[], int], recorder: Recorder) -> None:
        """Take the steps of the window; ``next_step()`` takes one. Pause ``recorder`` before writing files."""
        return

    def close(self) -> None:
        """End the probe's processes and collect their records. Further calls do nothing."""
        return

    def tables(self) -> Mapping[str, Columns]:
        """Return {table: {column: values}}, complete after :meth:`close`; only "samples" is used."""
        return {}

    def report(self) -> ProbeReport:
        """Return the probe's problems and facts for probes.json. They are complete after :meth:`close`."""
        ...
