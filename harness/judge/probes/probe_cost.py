"""Works out what the probes cost: the first baseline without any, with each alone, and with all of a measured run.

A cost is a share of the step: the step time with the probe / the step time without it, minus 1. Both alternated, so
the ratio is paired. A cost smaller than the interval's width cannot be distinguished from none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.explain.ledger import Blocks, mean_over
from harness.explain.speeds import speed, steps_per_s
from harness.explain.statistics import Estimate
from harness.study.contract import ALONE, BARE, LEDGER, PROFILED
from harness.study.records import ArmRecord
from harness.study.run_data import RunData

SAMPLED = ("host", "nvml")  # by the sampling process


@dataclass(frozen=True)
class ProbeCost:
    """``share``: of the step without it (0.01: 1 % longer). ``step_ms``: that step, in milliseconds."""

    probes: tuple[str, ...]  # "ledger", "host", ...; several: all that a measured run carries, together
    against: Literal["nothing", "ledger"]  # what they were added to
    share: Estimate
    step_ms: float

    @property
    def cost_ms(self) -> float:
        return self.share.median * self.step_ms


def is_probe_control(control: str | None) -> bool:
    """Whether a control is there for the probes: to measure their cost, or to be profiled."""
    return control is not None and (control in (BARE, PROFILED) or control.startswith(ALONE))


def probe_costs(
    arms: Sequence[ArmRecord], ledgers: Mapping[str, Blocks], runs: Sequence[RunData] = ()
) -> list[ProbeCost]:
    """The costs that the study's controls measured; ``arms`` as in study.json, ``ledgers`` of finished runs by arm.

    A probe that did not run in one of ``runs`` has no cost: it is left out, and the report says why it did not.
    """
    idle = {run.record.arm for run in runs if _idle(run)}
    return list(_costs(arms, {arm: blocks for arm, blocks in ledgers.items() if arm not in idle}))


def _idle(run: RunData) -> bool:
    """Whether ``run`` measures one probe's cost, but that probe did not run."""
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
        yield from _cost(("ledger",), "nothing", bare, ledger)
        for control, blocks in runs.items():
            if control != PROFILED:
                yield from _cost((control.removeprefix(ALONE),), "ledger", ledger, blocks)
        if carried:
            yield from _cost(("ledger", *carried), "nothing", bare, ledgers.get(of, {}))


def _cost(
    probes: tuple[str, ...], against: Literal["nothing", "ledger"], without: Blocks, with_it: Blocks
) -> Iterator[ProbeCost]:
    ratio = speed(with_it, without, steps_per_s)  # how many times as fast without it
    step_ms = mean_over(list(without.values()), lambda run: run.mean_step_ms)
    if ratio is not None and step_ms is not None:
        low, high = (None if bound is None else bound - 1 for bound in (ratio.ci_low, ratio.ci_high))
        yield ProbeCost(probes, against, Estimate(ratio.median - 1, low, high, ratio.n), step_ms)
