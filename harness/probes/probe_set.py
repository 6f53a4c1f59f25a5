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
    """All probes of one run except its ledger, driven together. The run makes it before its loader's workers start.

    See :class:`harness.probes.probe.Probe` for when each method is called. ``folder``: the run's folder.
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
        """Start the parts of the probes that take long to start. The warm-up steps of a repetition follow."""
        for probe in self._steady:
            probe.begin_repetition()

    def begin_steps(self) -> None:
        """Start recording in all probes that record measured steps. These steps follow."""
        for probe in self._steady:
            probe.begin_steps()

    def end_repetition(self) -> None:
        """Stop recording, the last probe first, so that earlier probes still record the cost of ending later ones."""
        for probe in reversed(self._steady):
            probe.end_repetition()

    def wait(self) -> None:
        """Block until all probes have finished the last repetition.

        Call it while no step is measured, before a suspension.
        """
        for _, probe in self._probes:
            probe.wait()

    def run_windows(self, next_step: Callable[[], int], recorder: Pausable) -> None:
        """Let each disturbing probe take the steps of its window, one after the other: they would record each other.

        ``next_step()`` takes a step and returns its number.
        ``recorder``: the ledger's recorder. A profile shows its phases, and it pauses while a profile is written.
        """
        self.begin_steps()
        for probe in self._windowed:
            probe.run_window(next_step, recorder)
        self.end_repetition()

    def run_closing_window(self, next_step: Callable[[], int], recorder: Pausable) -> None:
        """Take the steps of the profiling window after the measured steps.

        An error becomes a problem in :meth:`report`.
        ``next_step()`` takes a step and returns its number. ``recorder``: the ledger's recorder.
        """
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
        """Return the rows of all probes for the samples table, {column: values}; empty before :meth:`close`."""
        merged: dict[str, list[Any]] = {}
        for _, probe in self._probes:
            for name, values in probe.tables().get("samples", {}).items():
                merged.setdefault(name, []).extend(values)
        return merged

    def report(self) -> dict[str, Json]:
        """Return the content of probes.json: the probes' problems, facts, and the names of those that recorded nothing.

        ``harness.study.run_data`` reads it.
        """
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
