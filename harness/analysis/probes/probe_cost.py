"""What the probes themselves cost: the first baseline without any, with each alone, and with all of a measured run.

A cost is a share of the step: the step time with the probe / the step time without it, minus 1. Both took turns, so
the ratio is paired; below the interval's width a cost cannot be told from none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.comparisons import Blocks, speed, steps_per_s
from harness.analysis.ledger import mean_over
from harness.analysis.statistics import Estimate
from harness.study.records import ArmRecord
from harness.study.store import ALONE, BARE, LEDGER, PROFILED, RunData

NAMES = {
    "ledger": "step ledger (always on)",
    "host": "host",
    "nvml": "nvml",
    "torch_profiler": "torch_profiler, while it records",
    "py_spy": "py_spy, while it samples",
}


SAMPLED = ("host", "nvml")  # by the sampling process


@dataclass(frozen=True)
class ProbeCost:
    """``share``: of the step without it (0.01: 1 % longer). ``step_ms``: that step, in milliseconds."""

    probe: str
    against: str  # what it was added to
    share: Estimate
    step_ms: float

    @property
    def cost_ms(self) -> float:
        return self.share.median * self.step_ms


def is_probe_control(control: str | None) -> bool:
    """Whether a control is there for the probes: to tell their cost, or to be looked into."""
    return control is not None and (control in (BARE, PROFILED) or control.startswith(ALONE))


def probe_costs(
    arms: Sequence[ArmRecord], ledgers: Mapping[str, Blocks], runs: Sequence[RunData] = ()
) -> list[ProbeCost]:
    """The costs that the study's controls tell; ``arms`` as in study.json, ``ledgers`` of finished runs by arm.

    A probe that did not run in one of ``runs`` has no cost to tell: it is left out, and the report says why it did not.
    """
    idle = {run.record.arm for run in runs if _idle(run)}
    return list(_costs(arms, {arm: blocks for arm, blocks in ledgers.items() if arm not in idle}))


def _idle(run: RunData) -> bool:
    """Whether ``run`` is there for one probe's cost, and that probe did not run."""
    control = run.record.control or ""
    if run.record.status != "done" or not control.startswith(ALONE) or control == LEDGER:
        return False
    probe = control.removeprefix(ALONE)
    if probe in SAMPLED:
        return not run.probes.taken_samples.get(probe)
    return probe in run.probes.failed


def _costs(arms: Sequence[ArmRecord], ledgers: Mapping[str, Blocks]) -> Iterator[ProbeCost]:
    kinds = {
        (arm.of, arm.control): arm.name for arm in arms if arm.of and arm.control and is_probe_control(arm.control)
    }
    for of in dict.fromkeys(of for of, control in kinds if control == BARE):
        runs = {control: ledgers.get(name, {}) for (owner, control), name in kinds.items() if owner == of}
        ledger = runs.pop(LEDGER, {})
        bare = runs.pop(BARE)
        carried = [name for name in SAMPLED if runs.get(f"{ALONE}{name}")]  # by every measured run, besides the ledger
        yield from _cost(NAMES["ledger"], "no probe at all", bare, ledger)
        for control, blocks in runs.items():
            if control != PROFILED:
                name = control.removeprefix(ALONE)
                yield from _cost(NAMES.get(name, name), "the ledger", ledger, blocks)
        if carried:
            together = f"ledger and {' and '.join(carried)} together: every measured run"
            yield from _cost(together, "no probe at all", bare, ledgers.get(of, {}))


def _cost(probe: str, against: str, without: Blocks, with_it: Blocks) -> Iterator[ProbeCost]:
    ratio = speed(with_it, without, steps_per_s)  # how many times as fast without it
    step_ms = mean_over(list(without.values()), lambda run: run.mean_step_ms)
    if ratio is not None and step_ms is not None:
        low, high = (None if bound is None else bound - 1 for bound in (ratio.ci_low, ratio.ci_high))
        yield ProbeCost(probe, against, Estimate(ratio.median - 1, low, high, ratio.n), step_ms)
