"""List the probes. A new probe needs one file with a :class:`harness.probes.probe.Probe`, and one line here."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from harness.probes.probe import Probe


@dataclass(frozen=True)
class ProbeKind:
    """Entry of the list of probes: name, place of its class, and whether it disturbs the steps.

    The class is imported only when used, because few runs have the profilers.
    """

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
