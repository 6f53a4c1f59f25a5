"""The probes of one run besides its ledger: started and stopped together, and what they have to tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.machine.ptrace import allow_tracing
from harness.probes.sampler.sampler import Sampler, process_roles
from harness.study.store import Columns

if TYPE_CHECKING:
    from harness.probes.profilers.py_spy import PySpy
    from harness.probes.profilers.torch_profiler import Pausable, TorchProfiler


class ProbeSet:
    """``probes``: see :func:`harness.launch.probing.probes_of`; ``folder``: the run's own, for the probes' files."""

    def __init__(self, probes: dict[str, Any], folder: Path) -> None:
        self._windows = bool(probes["windows"])
        self._sampler = None if probes["sampler"] is None else Sampler(probes["sampler"], process_roles)
        self._profiler: TorchProfiler | None = None
        self._py_spy: PySpy | None = None
        if probes["torch_profiler"] is not None:  # few runs have these two: no other waits for their imports
            from harness.probes.profilers.torch_profiler import TorchProfiler

            self._profiler = TorchProfiler(probes["torch_profiler"], folder)
        if probes["py_spy"] is not None:
            from harness.probes.profilers.py_spy import PySpy

            self._py_spy = PySpy(probes["py_spy"], folder)
            allow_tracing()

    def begin(self) -> None:
        """A turn is about to begin: record whatever runs beside it. Before it settles: these take long to start."""
        if not self._windows:
            for probe in (self._profiler, self._py_spy):
                if probe is not None:
                    probe.begin()

    def start(self) -> None:
        """Steps that count are about to begin: sample."""
        if self._sampler is not None:
            self._sampler.start()

    def stop(self) -> None:
        if not self._windows:
            for probe in (self._profiler, self._py_spy):
                if probe is not None:
                    probe.end()
        if self._sampler is not None:
            self._sampler.stop()

    def wait(self) -> None:
        """Let the sampling process finish its reading: where no step is measured, before this group may be stopped."""
        if self._sampler is not None:
            self._sampler.wait()

    def run_windows(self, next_step: Callable[[], int], recorder: Pausable) -> None:
        """Take as many steps as the probes' windows have, one probe at a time: each would see the other.

        ``recorder`` is the ledger's: the profiler shows its phases, and the ledger pauses while a profile is written.
        """
        self.start()
        if self._profiler is not None:
            self._profiler.run(next_step, recorder)
        if self._py_spy is not None:
            self._py_spy.run(next_step)
        self.stop()

    def close(self) -> None:
        """End the sampling process and take what it read. Harmless when called again."""
        if self._sampler is not None:
            self._sampler.close()

    @property
    def samples(self) -> Columns:
        """The samples table; empty before :meth:`close`."""
        return {} if self._sampler is None else self._sampler.samples

    def told(self) -> dict[str, Any]:
        """What probes.json holds."""
        result: dict[str, Any] = {"problems": []}
        if self._sampler is not None:
            result["problems"] += self._sampler.problems
            result |= {"missed_samples": self._sampler.missed, "taken_samples": self._sampler.taken}
        for name, probe in (("torch_profiler", self._profiler), ("py_spy", self._py_spy)):
            if probe is not None:
                result["problems"] += probe.problems
                if self._windows:
                    result[name] = probe.facts()
        result["failed"] = ["py_spy"] if self._py_spy is not None and self._py_spy.failed else []
        return result
