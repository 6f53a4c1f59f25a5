"""Adds to a study's arms and comparisons what needs more than their ledgers: spans, doses and replays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from harness.analysis.comparisons import SAME, Blocks, Comparison, Controls, speed, steps_per_s
from harness.analysis.dose import dose, parse_control
from harness.analysis.overlap import SyncCall, mean_hidden_behind, sync_audit
from harness.analysis.replay.predict import predict, replace_data
from harness.analysis.replay.prediction import Prediction, ReplayValidation
from harness.analysis.statistics import Estimate, from_blocks
from harness.report.chain import chain
from harness.scenario.edits import parse_edits
from harness.scenario.overrides import flatten
from harness.study.store import RunData
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.analysis.report_types import ArmReport

Runs = Mapping[str, Sequence[RunData]]  # finished runs by arm
# What may differ between two arms for one's data path to be replayed under the other's steps: nothing that computes.
REPLAYABLE = ("data.path", "data.access", "data.workers", "data.prefetch", "data.shuffle", "data.inject", "data.extra_")


def explain_arm(report: ArmReport, runs: Runs, ledgers: Blocks, controls: Controls) -> None:
    """The blocking calls of an arm, and its replays: as it ran, and without data work."""
    own = runs.get(report.name, ())
    if not own or report.control:
        return
    report.syncs = _mean_syncs([sync_audit(run) for run in own])
    try:
        without = predict(own, parse_edits([f"{stage}=0" for stage in ("read", "tokenize", "pack", "transfer")]))
    except InputError:
        return  # tables of another trainer, without the spans that a replay needs
    report.replay_error = without.validation.median
    report.resampled_error = without.validation.resampled_median
    report.ideal_predicted = without.speedup
    report.ideal_measured = speed(ledgers, controls.get("ideal-data", report.name), steps_per_s)


def explain(c: Comparison, runs: Runs, arms: Mapping[str, Blocks], controls: Controls) -> None:
    """Doses, prediction, what data work hid behind, and the chain that leads from the first ratio to the last."""
    if c.missing is not None:
        return
    for waits, arm in ((c.baseline_waits, c.baseline), (c.candidate_waits, c.candidate)):
        if waits is not None and runs.get(arm):
            waits.hidden_behind = mean_hidden_behind(runs[arm])
    base = arms[c.baseline]
    _add_doses(c, base, controls)
    _add_prediction(c, runs, arms)
    ledgers = [*base.values(), *arms[c.candidate].values()]
    devices = [str(run.record.facts.get("device")) for run in ledgers if run.record.facts.get("emulated")]
    c.emulated = " and an ".join(dict.fromkeys(devices)) or None
    c.chain = chain(c)


def _add_doses(c: Comparison, base: Blocks, controls: Controls) -> None:
    by_what: dict[str, dict[int, Blocks]] = {}
    for (control, arm), blocks in controls.by.items():
        found = parse_control(control)
        if arm == c.baseline and found is not None:
            by_what.setdefault(found[0], {})[found[1]] = blocks
    workers = max((int(run.record.facts.get("workers") or 0) for run in base.values()), default=0)
    c.doses = [dose(base, doses, what, workers) for what, doses in by_what.items()]  # type: ignore[arg-type]


def _add_prediction(c: Comparison, runs: Runs, arms: Mapping[str, Blocks]) -> None:
    """The baseline's steps with the loader of the candidate's data-only control: known before anyone trains it."""
    reason = _not_replayable(c, runs)
    alone = [
        run
        for name, found in runs.items()
        for run in found
        if (run.record.control, run.record.of) == ("data-only", c.candidate)
    ]
    if reason is None and not alone:
        reason = f"no finished data-only control of {c.candidate}"
    if reason is None:
        try:
            found = replace_data(runs[c.baseline], alone)
        except InputError as error:
            reason = str(error)
        else:
            c.predicted_step = found.speedup
            c.predicted = _in_measure(c, found, arms)
            c.validation, c.within_tolerance = _off_by(found.validation), found.validation.granted
            del c.reasons["predicted"]
            return
    c.reasons["predicted"] = reason


def _not_replayable(c: Comparison, runs: Runs) -> str | None:
    first, second = (runs.get(arm, ()) for arm in (c.baseline, c.candidate))
    if not first or not second:
        return "no tables to replay"
    ours, theirs = flatten(first[0].record.config), flatten(second[0].record.config)
    differs = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key) and key != "seed"]
    other = [key for key in differs if not key.startswith(REPLAYABLE)]
    return f"the arms differ in {other[0]}, which changes more than the data path" if other else None


def _in_measure(c: Comparison, found: Prediction, arms: Mapping[str, Blocks]) -> Estimate | None:
    """The predicted speed-up in what the comparison measures: block by block times the tokens that a step has."""
    name: Literal["trained_tokens", "tokens"] | None = None
    if c.measure != "steps/s":
        name = "trained_tokens" if c.measure.startswith("trained") else "tokens"
    per_step = c.trained_per_step if name == "trained_tokens" else c.positions_per_step
    if name is None or per_step is None or abs(per_step - 1) <= SAME:
        return found.speedup
    base, other, logs = arms[c.baseline], arms[c.candidate], []
    for block in sorted(set(found.block_ms) & set(base) & set(other)):
        ours, theirs = base[block], other[block]
        first, second = getattr(ours, name), getattr(theirs, name)
        if first and second:
            tokens = second / len(theirs.step_ms) / (first / len(ours.step_ms))
            logs.append(math.log(ours.mean_step_ms / found.block_ms[block] * tokens))
    return from_blocks(logs)


def _off_by(validation: ReplayValidation) -> float:
    """How far unedited replays typically are off: in the order recorded or resampled, whichever is further."""
    return max(float(np.median(np.abs(list(errors.values())))) for errors in (validation.errors, validation.resampled))


def _mean_syncs(found: Sequence[Sequence[SyncCall]]) -> list[SyncCall]:
    """One line per call site: means over runs."""
    by_site: dict[str, list[SyncCall]] = {}
    for calls in found:
        for call in calls:
            by_site.setdefault(call.site, []).append(call)
    runs = max(1, len(found))

    def mean(values: Sequence[float]) -> float:
        return sum(values) / runs

    return [
        SyncCall(
            site=site,
            calls_per_step=mean([call.calls_per_step for call in calls]),
            blocked_ms=None
            if any(call.blocked_ms is None for call in calls)
            else mean([call.blocked_ms or 0.0 for call in calls]),
            hid_ms=mean([call.hid_ms for call in calls]),
            hid_behind={
                name: mean([call.hid_behind.get(name, 0.0) for call in calls])
                for name in dict.fromkeys(name for call in calls for name in call.hid_behind)
            },
            starved_ms=mean([call.starved_ms for call in calls]),
        )
        for site, calls in by_site.items()
    ]
