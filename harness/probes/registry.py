"""Lists the probes. A new probe is one file with a :class:`harness.probes.probe.Probe`, and one line here."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from harness.probes.probe import Probe


@dataclass(frozen=True)
class ProbeKind:
    """A probe by name. Its code is imported only where it is used: few runs have the profilers."""

    name: str  # in the message that starts a run; of a probe that disturbs also in the scenario and in probes.json
    path: str  # module:class
    disturbs: bool  # it slows the steps that it records, so that they do not count as measured

    def load(self) -> type[Probe]:
        module, _, name = self.path.partition(":")
        found: type[Probe] = getattr(importlib.import_module(module), name)
        return found


# In the order in which they are attached and have their windows.
PROBES = (
    ProbeKind("sampler", "harness.probes.sampler.sampler:Sampler", disturbs=False),
    ProbeKind("torch_profiler", "harness.probes.profilers.torch_profiler:TorchProfiler", disturbs=True),
    ProbeKind("py_spy", "harness.probes.profilers.py_spy:PySpy", disturbs=True),
)
CLOSING = next(kind for kind in PROBES if kind.name == "torch_profiler")  # has the closing window of a run
