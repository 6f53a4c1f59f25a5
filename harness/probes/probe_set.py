"""Drive the probes of one run together: begin and end them around repetitions, and collect their reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.probes.probe import Pausable, Probe
from harness.probes.registry import CLOSING, ProbeKind
from harness.probes.run_probes import RunProbes
from harness.study.contract import Columns
from trainer.errors import in_words
from trainer.json_types import Json


class ProbeSet:
    """All probes of one run except its ledger. See :class:`harness.probes.probe.Probe` for when each method is called.

    ``folder``: the run's folder, for the probes' files.
    """

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
        """Start slow parts of the probes. The warm-up steps of a repetition follow."""
        for probe in self._steady:
            probe.begin_repetition()

    def begin_steps(self) -> None:
        """Start recording. Measured steps follow."""
        for probe in self._steady:
            probe.begin_steps()

    def end_repetition(self) -> None:
        """Stop recording, in reverse order, so that earlier probes still see the cost of ending later ones."""
        for probe in reversed(self._steady):
            probe.end_repetition()

    def wait(self) -> None:
        """Wait for the probes to finish their repetition, while no step is measured and before the run is suspended."""
        for _, probe in self._probes:
            probe.wait()

    def run_windows(self, next_step: Callable[[], int], recorder: Pausable) -> None:
        """Take the steps of the probes' windows, one probe at a time, because each would record the other.

        ``recorder`` is the ledger's: a profile shows its phases, and it pauses while a profile is written.
        """
        self.begin_steps()
        for probe in self._windowed:
            probe.run_window(next_step, recorder)
        self.end_repetition()

    def run_closing_window(self, next_step: Callable[[], int], recorder: Pausable) -> None:
        """Take the steps of the closing window. An error is reported, and the measured steps stay valid."""
        assert self._closing is not None, "asked of a run without a closing window"
        try:
            self._closing.run_window(next_step, recorder)
            self._closed = True
        except Exception as error:
            self._closing_problem = (
                f"{CLOSING.name}: the window after the measured steps failed ({in_words(error)}), so how long the "
                f"device worked stays open; probes.{CLOSING.name}: false leaves it out"
            )

    def close(self) -> None:
        """End the probes' processes and collect their records. Further calls do nothing."""
        for _, probe in self._probes:
            probe.close()

    def samples(self) -> Columns:
        """Return the samples table; empty before :meth:`close`."""
        merged: dict[str, list[Any]] = {}
        for _, probe in self._probes:
            for name, values in probe.tables().get("samples", {}).items():
                merged.setdefault(name, []).extend(values)
        return merged

    def report(self) -> dict[str, Json]:
        """Return the content of probes.json (read by ``harness.study.run_data``)."""
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
