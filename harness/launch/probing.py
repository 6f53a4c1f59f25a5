"""Chooses the probes of a run, from what the scenario declares and what the run's control measures."""

from __future__ import annotations

from harness.probes.probe import ProbeSettings
from harness.probes.profilers.torch_session import TorchProfilerSettings
from harness.probes.registry import PROBES
from harness.probes.run_probes import RunProbes
from harness.probes.sampler.settings import SamplerSettings
from harness.study.contract import ALONE, BARE, LEDGER, PROFILED
from trainer.json_types import JsonObject, section

AUTO = "auto"  # value of probes.torch_profiler
CLOSING_WARMUP = 1  # steps that torch.profiler drops: its first events are slow
CLOSING_STEPS = 3


def probes_of(declared: JsonObject, control: str | None, *, first: bool = False) -> RunProbes:
    """The probes of one run; ``declared`` is the scenario's ``probes`` as plain data.

    A measured run is sampled (host and NVML). A profiled run is sampled too, and its probes that disturb have windows.
    A bare run has not even the ledger; a run that measures the cost of one probe has the ledger and that probe.
    ``first``: it is the first run of its arm, which may have a closing window.
    """
    if control == BARE:
        return RunProbes(ledger=False)
    if control == LEDGER:
        return RunProbes()
    disturbing = [kind for kind in PROBES if kind.disturbs and declared.get(kind.name) not in (None, AUTO)]
    profilers = {kind.name: kind.load().settings_type.from_json(section(declared, kind.name)) for kind in disturbing}
    alone = control.removeprefix(ALONE) if control is not None and control.startswith(ALONE) else None
    if alone in profilers:
        return RunProbes(settings={alone: profilers[alone]})
    sampled = _sampled(declared, alone)
    if control == PROFILED:
        return RunProbes(windows=True, settings=sampled | profilers)
    closing = None
    if first and control is None and declared.get("torch_profiler") == AUTO:
        closing = TorchProfilerSettings(wait=0, warmup=CLOSING_WARMUP, active=CLOSING_STEPS, workers=False)
    return RunProbes(settings=sampled, closing=closing)


def _sampled(declared: JsonObject, alone: str | None) -> dict[str, ProbeSettings]:
    """Settings of the sampling process, if it reads anything; ``alone``: "host" or "nvml" if it reads only that."""
    host, nvml = bool(declared["host"]), declared.get("nvml", False)
    if alone is not None:
        host, nvml = alone == "host", nvml if alone == "nvml" else False
    if not host and not nvml:
        return {}
    rate_hz = declared.get("sample_hz", 10)
    return {"sampler": SamplerSettings.from_json({"host": host, "nvml": nvml, "rate_hz": rate_hz})}
