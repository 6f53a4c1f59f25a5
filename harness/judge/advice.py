"""Predict the effect of further changes: replay an arm under changes that a user can make, and recommend some.

A change is recommended if all of this holds:

- The replay reproduces the measurement, and the whole interval of the predicted speed-up is above 1.
- The median exceeds the noise floor, the replay's error and :data:`ADVISED_GAIN_MIN`.
- Among values of one setting, it is the smallest that is as good as the best.
- No arm of the study contradicts the prediction. A contradicted value rules out the other values of its setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from harness.explain.ledger import Blocks
from harness.explain.replay.attribution import without_stages
from harness.explain.replay.predict import Replays
from harness.explain.replay.prediction import Prediction
from harness.explain.replay.recording import ReplayError
from harness.explain.replay.whatif import validation_arms
from harness.explain.statistics import Estimate, Likeness
from harness.judge.doubts import Bar, Doubt, RemedyKind, barred, doubt, in_order
from harness.judge.policy import (
    ADVICE_REPLICATES,
    ADVISED_GAIN_MIN,
    ADVISED_WORKERS,
    AS_GOOD_WITHIN,
    WORKER_MULTIPLES,
)
from harness.judge.predictions import (
    bar_of,
    clears,
    contradicts,
    is_serial,
    loader_doubts,
    prediction_doubts,
    refusal,
    serial_speedup,
    tried_speed,
    with_any_handover,
)
from harness.judge.report_types import Advice, AdviceBar, AdviceCost, ArmAdvice
from harness.scenario.edits import parse_edits
from harness.scenario.overrides import differing, flatten, lookup, lookup_number
from harness.study.contract import STAGES
from harness.study.run_data import RunData
from trainer.config_base import BEFORE

# Keys in which another arm may differ if its data path is to be tried.
PATH_KEYS = {"data.path", "data.access", "data.tokenizer.engine"}
NUMBERS: tuple[AdviceCost, ...] = ("processes", "memory")  # changes that are values of one setting
NO_TOKENIZING = "tokenize=0"


@dataclass(frozen=True)
class _Option:
    """Replayed change. ``tried_by``: the arm that already has it, if any."""

    change: str
    cost: AdviceCost
    prediction: Prediction
    tried_by: str | None
    speedup: Estimate
    serial: float | None = None


def advise(
    arm: str,
    runs: Mapping[str, Sequence[RunData]],
    ledgers: Callable[[str], Blocks],
    noise_floor: float | None,
    alike: Likeness | None = None,
    few_blocks: RemedyKind = "more blocks",
    resolution: float | None = None,
) -> ArmAdvice:
    """Replay the runs of ``arm`` under every change that applies to it. ``runs``: all runs of the study, by arm.

    ``resolution``: the smallest change that the study can detect, if it detected none. Smaller gains are not
    recommended. ``alike``: similarity of neighbouring blocks, which widens the intervals of measured ratios.
    """
    own = runs.get(arm, ())
    if (why := refusal(own)) is not None:
        return ArmAdvice(arm, noise_floor=noise_floor, refused=why, doubts=(why,))
    try:
        replays = Replays(own, ADVICE_REPLICATES)
        plain = replays.predict(parse_edits([]))
        found = [*_edited(arm, runs, replays), *_fed(arm, runs, replays)]
    except ReplayError as error:
        why = doubt("not replayable", arm, where=error.gap)
        return ArmAdvice(arm, noise_floor=noise_floor, refused=why, doubts=(why,))
    known = [*prediction_doubts(plain, arm, few_blocks), *loader_doubts(own, replays)]
    believed = barred(known, "recommendation") is None
    least = max(noise_floor or 0.0, resolution or 0.0, plain.validation.typical, ADVISED_GAIN_MIN)
    measured = [tried_speed(ledgers(arm), ledgers(one.tried_by), alike) if one.tried_by else None for one in found]
    contradicted = [contradicts(one.speedup, one.serial, was, least) for one, was in zip(found, measured, strict=True)]
    # If replay is wrong about one number of workers, it may be wrong about the others too.
    withheld = {one.cost for one, wrong in zip(found, contradicted, strict=True) if wrong and one.cost in NUMBERS}
    options = []
    for one, was, wrong in zip(found, measured, contradicted, strict=True):
        needed = max(least, one.prediction.validation.typical)
        promises = believed and clears(one.speedup, needed)
        distrust = _refusal(one, arm, contradicted=wrong or one.cost in withheld) if promises else None
        bar = _bar(one, needed, own, replays) if promises and distrust is None else None
        worth = promises and distrust is None and bar is None
        options.append(Advice(one.change, one.speedup, one.cost, worth, was, one.serial, wrong, bar, distrust))
    return ArmAdvice(
        arm,
        tuple(sorted(_smallest(options), key=lambda one: -one.speedup.median)),
        error=plain.validation.typical,
        within_tolerance=plain.validation.within_tolerance,
        from_blocks=plain.interval_from == "blocks",
        resolution=resolution,
        doubts=in_order([*known, *_doubts_of(options, arm)]),
        noise_floor=noise_floor,
        iterable=is_iterable(arm, runs) and not all(run.record.facts.copies == 1 for run in own),
        barred=_loader_bar(own, replays, least),
        assumptions=tuple(dict.fromkeys(text for one in found for text in one.prediction.assumptions)),
    )


def _doubts_of(options: Sequence[Advice], arm: str) -> Iterator[Doubt]:
    """Yield the doubts that bar single changes: contradicted by an arm, or workers that may share one resource."""
    for one in options:
        if one.contradicted:
            yield doubt("contradicted", arm, where=one.change)
        if one.bar == "serial":
            yield doubt("serial", arm, where=one.change)


def is_iterable(arm: str, runs: Mapping[str, Sequence[RunData]]) -> bool:
    """Return True if the arm's dataset is iterable.

    If only workers open the source, any run of the study with this source decides.
    """

    def source(run: RunData) -> object:
        return lookup(run.record.config, "data.source", None)

    own = source(runs[arm][0])
    alike = runs[arm] if own is None else [run for group in runs.values() for run in group if source(run) == own]
    return any(run.record.facts.iterable for run in alike)


def _edited(arm: str, runs: Mapping[str, Sequence[RunData]], replays: Replays) -> Iterator[_Option]:
    records = [run.record for found in runs.values() for run in found]
    for change, cost in _edits(runs[arm], replays):
        edits = parse_edits([change])
        if bar_of(edits, runs[arm], replays) == "no loader":
            continue
        tried = _pretokenized(arm, runs) if cost == "pretokenized copy" else validation_arms(records, arm, edits)
        found = replays.predict(edits)
        yield _Option(
            change,
            cost,
            found,
            next(iter(tried), None),
            with_any_handover(replays, found).speedup,
            serial_speedup(replays, found),
        )


def _fed(arm: str, runs: Mapping[str, Sequence[RunData]], replays: Replays) -> Iterator[_Option]:
    """Yield the arm's steps fed by the loaders of other arms that differ in their data path only."""
    alone = {
        str(found[0].record.of): found
        for found in runs.values()
        if found and found[0].record.control == "data-only" and found[0].record.of != arm
    }
    for name, loaders in alone.items():
        if runs.get(name) and set(_differing(arm, name, runs)) <= PATH_KEYS:
            with suppress(ReplayError):  # no block in which both finished
                found = replays.fed_by(loaders)
                yield _Option(name, "its data path", found, name, found.speedup)


def _pretokenized(arm: str, runs: Mapping[str, Sequence[RunData]]) -> list[str]:
    """Return the arms that differ from ``arm`` only in having pretokenized documents."""
    plain = [name for name, found in runs.items() if name != arm and found and found[0].record.control is None]
    return [
        name
        for name in plain
        if _differing(arm, name, runs)
        == {"data.path": str(lookup(runs[arm][0].record.config, "data.path", "")).replace("text", "tokens", 1)}
    ]


def _differing(arm: str, other: str, runs: Mapping[str, Sequence[RunData]]) -> dict[str, object]:
    """Return the values of ``other`` for the keys in which it differs from ``arm``."""
    ours, theirs = (runs[name][0].record.config for name in (arm, other))
    values = flatten(theirs)
    return {key: values.get(key) for key in differing(ours, theirs) if key != "seed"}


def _edits(runs: Sequence[RunData], replays: Replays) -> list[tuple[str, AdviceCost]]:
    """Return the edits that would change these runs, with the cost of each to the user."""
    config, facts = runs[0].record.config, runs[0].record.facts
    workers = int(lookup_number(config, "data.workers", 0))
    prefetch = int(lookup_number(config, "data.prefetch", 2))
    numbers = [n for n in ADVISED_WORKERS if n > workers]
    if workers >= max(ADVISED_WORKERS):  # More processes help if they wait for a disk or a network, but not for a core.
        numbers = [times * workers for times in WORKER_MULTIPLES if replays.has_cores_for(times * workers)]
    found: list[tuple[str, AdviceCost]] = [(f"workers={n}", "processes") for n in numbers]
    # Batches cost the same in any process if no worker is slow.
    if workers and facts.attached is not None and not replays.unequal and replays.slow_worker is None:
        found.append(("workers=0", "no processes"))
    if workers:
        found.append((f"prefetch={2 * prefetch}", "memory"))
    if not str(lookup(config, "data.path", "")).startswith("tokens") and replays.tokenizes:
        found.append((NO_TOKENIZING, "pretokenized copy"))
    sync = lookup(config, "compute.sync", BEFORE["compute.sync"])
    reads_norm = sync == "norm" and lookup(config, "compute.check_finite", True) is not False
    if facts.asynchronous and (reads_norm or sync == "every-step"):
        found.append(("sync=late", "late check"))
    return found


def _bar(one: _Option, least: float, own: Sequence[RunData], replays: Replays) -> AdviceBar | None:
    """Return why a change with a predicted speed-up is not recommended; None if it is recommended.

    "serial": no speed-up remains if workers wait for one shared resource. A run with more workers would show it.
    """
    if one.cost in NUMBERS and (bar := bar_of(parse_edits([one.change]), own, replays)) is not None:
        return bar
    return "serial" if is_serial(one.serial, least) else None


def _refusal(one: _Option, arm: str, *, contradicted: bool) -> Doubt | None:
    """Return why the prediction is not reliable, or None. ``contradicted``: by an arm with any value of the setting."""
    if contradicted:
        return doubt("contradicted", arm, where=one.change)
    validation = one.prediction.validation
    return None if validation.within_tolerance else doubt("replay off", arm, share=validation.typical)


def _loader_bar(own: Sequence[RunData], replays: Replays, least: float) -> Bar | None:
    """Return why more workers are not predicted; None if they are, or if data work costs too little to matter."""
    bar = bar_of(parse_edits([f"workers={max(ADVISED_WORKERS[0], 2 * replays.workers)}"]), own, replays)
    if bar is None or not clears(replays.predict(without_stages(STAGES)).speedup, least):
        return None
    return bar


def _smallest(options: Sequence[Advice]) -> list[Advice]:
    """Return the options with at most one number of workers recommended: the smallest that is as good as the best."""
    kept: dict[str, Advice] = {}
    for one in options:
        if one.worth and one.cost == "processes":
            cheaper = kept.get(one.cost)
            if cheaper is None or one.speedup.median > cheaper.speedup.median * (1 + AS_GOOD_WITHIN):
                kept[one.cost] = one
    return [replace(one, worth=False) if one.cost in kept and one is not kept[one.cost] else one for one in options]
