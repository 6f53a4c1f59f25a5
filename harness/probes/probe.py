"""Define the interface of a probe, list the probes, choose those of one run, and drive them together.

The launcher sends them to the run as JSON; its workers get them too (``ledger.recorders.attach_in_worker``). A new
probe needs one file with a :class:`Probe`, and one line in ``PROBES``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from harness.study.contract import Columns
from trainer.errors import in_words
from trainer.json_types import Json, JsonObject, section
from trainer.telemetry import Recorder


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

    A run calls, in this order:

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
    def attach_in_worker(cls, settings: Any, folder: Path, worker_id: int, *, windows: bool) -> None:
        """Prepare the probe in a loader worker. ``windows``: True in the run of the disturbing probes' windows."""

    def begin_repetition(self) -> None:
        """Start the parts of the probe that take long to start. The warm-up steps of a repetition follow."""

    def begin_steps(self) -> None:
        """Start to record. Measured steps, or another probe's window, follow."""

    def end_repetition(self) -> None:
        """Stop recording. The measured steps are over."""

    def wait(self) -> None:
        """Block until the probe has finished all work for the last repetition, so that the run may be suspended."""

    def run_window(self, next_step: Callable[[], int], recorder: Recorder) -> None:
        """Take the steps of the window; ``next_step()`` takes one. Pause ``recorder`` before writing files."""

    def close(self) -> None:
        """End the probe's processes and collect their records. Further calls do nothing."""

    def tables(self) -> Mapping[str, Columns]:
        """Return {table: {column: values}}, complete after :meth:`close`; only "samples" is used."""
        return {}

    def report(self) -> ProbeReport:
        """Return the probe's problems and facts for probes.json. They are complete after :meth:`close`."""
        ...


@dataclass(frozen=True)
class ProbeKind:
    """Entry of the list of probes. Its class is imported only when used, because few runs have the profilers."""

    name: str  # key in the message that starts a run; for a disturbing probe also in the scenario and in probes.json
    path: str  # module:class
    disturbs: bool  # True if it slows the steps that it records: these are not measured

    def load(self) -> type[Probe]:
        module, _, name = self.path.partition(":")
        probe: type[Probe] = getattr(importlib.import_module(module), name)
        return probe


# Order in which probes are attached and have their windows
PROBES = (
    ProbeKind("sampler", "harness.probes.sampler.sampler:Sampler", disturbs=False),
    ProbeKind("torch_profiler", "harness.probes.profilers.torch_profiler:TorchProfiler", disturbs=True),
    ProbeKind("py_spy", "harness.probes.profilers.py_spy:PySpy", disturbs=True),
)
CLOSING = next(kind for kind in PROBES if kind.name == "torch_profiler")  # probe of a run's closing window


@dataclass(frozen=True)
class RunProbes:
    """Probes of one run, with their settings. The launcher sends them to the run as JSON (``harness.launch.protocol``).

    The JSON has the fields ``ledger`` and ``windows``, and the settings of each probe by its name (null: no such
    probe). "closing" is present only if set, because older versions of the code do not know it.
    """

    ledger: bool = True  # False only in a bare run, which records no phases or stages
    windows: bool = False  # True: disturbing probes get their own windows after the warm-up, and no step is measured
    settings: Mapping[str, ProbeSettings] = field(default_factory=dict)  # settings of the run's probes, by name
    # Settings of torch.profiler for a window after the last repetition, used only if much time is unexplained
    closing: ProbeSettings | None = None

    @classmethod
    def from_json(cls, content: JsonObject) -> Self:
        settings = {
            kind.name: kind.load().settings_type.from_json(section(content, kind.name))
            for kind in PROBES
            if content.get(kind.name) is not None
        }
        closing = None
        if content.get("closing") is not None:
            closing = CLOSING.load().settings_type.from_json(section(content, "closing"))
        return cls(bool(content["ledger"]), bool(content["windows"]), settings, closing)

    def to_json(self) -> dict[str, Json]:
        settings = {kind.name: self.settings.get(kind.name) for kind in PROBES}
        return {
            "ledger": self.ledger,
            **{name: None if chosen is None else chosen.to_json() for name, chosen in settings.items()},
            "windows": self.windows,
            **({} if self.closing is None else {"closing": self.closing.to_json()}),
        }

    def chosen(self) -> Iterator[tuple[ProbeKind, ProbeSettings]]:
        """Yield (kind, settings) of each probe that the run has, in the order of ``PROBES``."""
        for kind in PROBES:
            if (settings := self.settings.get(kind.name)) is not None:
                yield kind, settings


class ProbeSet:
    """All probes of one run but the ledger, made before its workers start. :class:`Probe` has the order of calls."""

    def __init__(self, probes: RunProbes, folder: Path) -> None:
        self._windows = probes.windows
        self._probes: list[tuple[ProbeKind, Probe]] = [
            (kind, kind.load().attach(settings, folder)) for kind, settings in probes.chosen()
        ]
        # If probes have windows, disturbing probes run only in their windows.
        self._windowed = [probe for kind, probe in self._probes if kind.disturbs and self._windows]
        self._steady = [probe for kind, probe in self._probes if not (kind.disturbs and self._windows)]
        self._closing = None if probes.closing is None else CLOSING.load().attach(probes.closing, folder)
        self._closing_problem: str | None = None
        self._closed = False  # True once the closing window has been taken

    def begin_repetition(self) -> None:
        for probe in self._steady:
            probe.begin_repetition()

    def begin_steps(self) -> None:
        for probe in self._steady:
            probe.begin_steps()

    def end_repetition(self) -> None:
        """Stop recording, the last probe first, so that earlier probes still record the cost of ending later ones."""
        for probe in reversed(self._steady):
            probe.end_repetition()

    def wait(self) -> None:
        for _, probe in self._probes:
            probe.wait()

    def run_windows(self, next_step: Callable[[], int], recorder: Recorder) -> None:
        """Let disturbing probes take their steps one after the other: they would record each other."""
        self.begin_steps()
        for probe in self._windowed:
            probe.run_window(next_step, recorder)
        self.end_repetition()

    def run_closing_window(self, next_step: Callable[[], int], recorder: Recorder) -> None:
        """Take the profiled steps after the measured ones. An error becomes a problem in :meth:`report`."""
        assert self._closing is not None, "asked of a run without a closing window"
        try:
            self._closing.run_window(next_step, recorder)
            self._closed = True
        except Exception as error:
            self._closing_problem = (
                f"{CLOSING.name}: the window after the measured steps failed ({in_words(error)}), so the "
                f"device time is unknown; probes.{CLOSING.name}: false skips this window"
            )

    def close(self) -> None:
        for _, probe in self._probes:
            probe.close()

    def samples(self) -> Columns:
        """Return the rows of all probes for the samples table, {column: values}; empty before :meth:`close`."""
        merged: dict[str, list[Any]] = {}
        for _, probe in self._probes:
            for name, values in probe.tables().get("samples", {}).items():
                merged.setdefault(name, []).extend(values)
        return merged

    def report(self) -> dict[str, Json]:
        """Return the content of probes.json, which ``harness.study.run_data`` reads."""
        problems: list[str] = []
        failed: list[str] = []
        facts: dict[str, Json] = {}
        for kind, probe in self._probes:
            report = probe.report()
            problems += report.problems
            failed += [kind.name] * report.failed
            if not kind.disturbs:
                facts |= report.facts
            elif self._windows:  # beside repetitions, it records only to measure its cost
                facts[kind.name] = report.facts
        if self._closing is not None and self._closed:
            report = self._closing.report()
            problems += report.problems
            facts[CLOSING.name] = report.facts
        if self._closing_problem is not None:
            problems.append(self._closing_problem)
        return {"problems": problems, **facts, "failed": failed}
