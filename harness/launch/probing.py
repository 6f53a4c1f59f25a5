"""Choose the probes of a run, from the scenario and the run's control.

CUDA events do not separate work from waiting while the host is still launching (``harness.explain.bounds``). If this
open time (:class:`OpenTime`) exceeds ``LIMIT_SHARE_MIN``, a few more steps are profiled. They come last, because a
profiler may slow its process permanently.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.probes.probe import PROBES, ProbeSettings, RunProbes
from harness.probes.profilers.torch_session import TorchProfilerSettings
from harness.probes.sampler.messages import SamplerSettings
from harness.study.contract import ALONE, BARE, LEDGER, PROFILED
from trainer.json_types import JsonObject, section
from trainer.telemetry import Blocked, Kernel

AUTO = "auto"  # value of probes.torch_profiler
CLOSING_WARMUP = 1  # steps that torch.profiler drops, because its first events are slow
CLOSING_STEPS = 3


def probes_of(declared: JsonObject, control: str | None, *, first: bool = False) -> RunProbes:
    """Return the probes of one run, from the scenario's ``probes`` (``declared``) and the run's ``control``.

    - No control: the sampler. An arm's ``first`` run may add a closing window (profiled steps at its end).
    - Profiled: the sampler, and each profiler in a window of its own, in which no step is measured.
    - Bare: nothing, not even the ledger. Ledger: only the ledger.
    - Cost of one probe: the ledger and this probe.
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
    """Return {"sampler": settings}, or {} without. ``alone``: the only part, "host" or "nvml"; None: all declared."""
    host, nvml = bool(declared["host"]), declared.get("nvml", False)
    if alone is not None:
        host, nvml = alone == "host", nvml if alone == "nvml" else False
    if not host and not nvml:
        return {}
    rate_hz = declared.get("sample_hz", 10)
    return {"sampler": SamplerSettings.from_json({"host": host, "nvml": nvml, "rate_hz": rate_hz})}


class OpenTime:
    """Sums of measured time in ns, and its open part, in which CUDA events cannot tell work from waits."""

    def __init__(self) -> None:
        self._open_ns = self._measured_ns = 0

    def add(self, kernels: Sequence[Kernel], blocking: Sequence[Blocked], since_ns: int, until_ns: int) -> None:
        """Add a repetition (CLOCK_MONOTONIC). ``kernels`` and ``blocking``: records of its device."""
        self._open_ns += open_ns(kernels, blocking, since_ns, until_ns)
        self._measured_ns += until_ns - since_ns

    @property
    def noticeable(self) -> bool:
        """True if the open part exceeds the share LIMIT_SHARE_MIN of the measured time: a closing window is needed."""
        from harness.explain.policy import LIMIT_SHARE_MIN

        return self._open_ns > LIMIT_SHARE_MIN * self._measured_ns


def open_ns(kernels: Sequence[Kernel], blocking: Sequence[Blocked], since_ns: int, until_ns: int) -> int:
    """Return the ns (CLOCK_MONOTONIC) in which events cannot tell work from waits, by ``harness.explain.bounds``."""
    import numpy as np

    from harness.explain.bounds import device_work, per_step
    from harness.explain.spans import RunSpans, Spans, Stretches, begun_when_launched

    names: dict[str, int] = {}

    def spans(rows: Sequence[tuple[str, int, int]]) -> Spans:
        codes = np.array([names.setdefault(name, len(names)) for name, _, _ in rows], dtype=np.int32)
        times = np.array([times for _, *times in rows], dtype=np.int64).reshape(-1, 2)
        unknown = np.full(len(rows), -1, dtype=np.int32)
        return Spans(codes, times[:, 0], times[:, 1], unknown, unknown.astype(np.float32))

    worked = spans([(kernel.name, kernel.start_ns, kernel.end_ns) for kernel in kernels])
    launched = spans([(kernel.name, kernel.launch_start_ns, kernel.launch_end_ns) for kernel in kernels])
    waited, empty = spans([(wait.site, wait.start_ns, wait.end_ns) for wait in blocking]), spans([])
    spans_of_run = RunSpans(tuple(names), empty, empty, worked, launched, waited, empty, empty)
    work = device_work(begun_when_launched(spans_of_run))
    measured = Stretches(np.array([since_ns]), np.array([until_ns]))
    return int(per_step(measured, work.open)[0])
