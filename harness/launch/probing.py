"""Which probes a run is measured with: what the scenario declares, and what its control is there to find out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.study.store import ALONE, BARE, LEDGER, PROFILED


def probes_of(declared: Mapping[str, Any], control: str | None) -> dict[str, Any]:
    """The probes of one run, from the scenario's ``probes`` (as plain data) and the run's control.

    ``ledger``: phases and stages, always but in a bare run. ``sampler``: what the sampling process reads, or None.
    ``torch_profiler`` and ``py_spy``: their settings, or None. ``windows``: whether those two have windows of their own
    after the warmup (the profiled run); else they run while steps are measured.
    """
    none = {"ledger": True, "sampler": None, "torch_profiler": None, "py_spy": None, "windows": False}
    if control == BARE:
        return {**none, "ledger": False}
    if control == LEDGER:
        return none
    alone = control.removeprefix(ALONE) if control is not None and control.startswith(ALONE) else None
    if alone in ("torch_profiler", "py_spy"):
        return {**none, alone: declared[alone]}
    host, nvml = bool(declared["host"]), declared.get("nvml", False)
    if alone is not None:
        host, nvml = alone == "host", nvml if alone == "nvml" else False
    sampler = {"host": host, "nvml": nvml, "rate_hz": declared.get("sample_hz", 10)} if host or nvml else None
    if control != PROFILED:
        return {**none, "sampler": sampler}
    looked = {name: declared.get(name) for name in ("torch_profiler", "py_spy")}
    return {**none, "sampler": sampler, **looked, "windows": True}
