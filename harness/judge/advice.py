"""Predict the effect of further changes: replay an arm under changes that a user can make, and recommend some.

A change is recommended if the replay reproduces the measurement, and

- the whole interval of the predicted speed-up is above 1;
- its median exceeds the noise floor, the replay's error and :data:`ADVISED_GAIN_MIN`;
- it is the smallest value of its setting that is as good as the best, and no arm contradicts a value of this setting.
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
from harness.judge.policy import ADVICE_REPLICATES, ADVISED_GAIN_MIN, ADVISED_WORKERS, AS_GOOD_WITHIN, WORKER_MULTIPLES
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
    """One change of an arm with its replay."""

    change: str  # edit text such as ``workers=2``, or the arm whose data path is used
    cost: AdviceCost
    prediction: Prediction
    tried_by: str | None  # the arm that already has the change
    speedup: Estimate
    serial: float | None = None  # speed-up if workers share what serves one at a time; None: no different


def advise(
    arm: str,
    runs: Mapping[str, Sequence[RunData]],
    ledgers: Callable[[str], Blocks],
    noise_floor: float | None,
    alike: Likeness | None = None,
    few_blocks: RemedyKind = "more blocks",
    resolution: float | None = None,
) -> ArmAdvice:
    """Return the predicted effect of every change that applies to ``arm``, and which of them are worth recommending.

    ``runs``: all runs of the study, by arm. ``ledgers``: function that returns an arm's ledgers by block.
    ``resolution``: smallest change that the study can detect, if it detected none. Smaller gains are not recommended.
    ``alike``: similarity of neighbouring blocks, which widens the intervals of measured ratios.
    ``few_blocks``: remedy for too few blocks. Without a possible replay there are no options, and ``refused`` is set.
    """
    arm_runs = runs.get(arm, ())
    if (reason := refusal(arm_runs)) is not None:
        return ArmAdvice(arm, noise_floor=noise_floor, refused=reason, doubts=(reason,))
    try:
        replays = Replays(arm_runs, ADVICE_REPLICATES)
        plain = replays.predict(parse_edits([]))
        candidates = [*_edited(arm, runs, replays), *_fed(arm, runs, replays)]
    except ReplayError as error:
        reason = doubt("not replayable", arm, where=error.gap)
        return ArmAdvice(arm, noise_floor=noise_floor, refused=reason, doubts=(reason,))
    doubts = [*prediction_doubts(plain, arm, few_blocks), *loader_doubts(arm_runs, replays)]
    believed = barred(doubts, "recommendation") is None
    gain_min = max(noise_floor or 0.0, resolution or 0.0, plain.validation.typical, ADVISED_GAIN_MIN)
    measured = [
        tried_speed(ledgers(arm), ledgers(entry.tried_by), alike) if entry.tried_by else None for entry in candidates
    ]
    contradicted = [
        contradicts(entry.speedup, entry.serial, gain, gain_min)
        for entry, gain in zip(candidates, measured, strict=True)
    ]
    # If replay is wrong about one number of workers, it may be wrong about the others too.
    withheld = {
        entry.cost for entry, wrong in zip(candidates, contradicted, strict=True) if wrong and entry.cost in NUMBERS
    }
    options = []
    for option, tried, wrong in zip(candidates, measured, contradicted, strict=True):
        needed = max(gain_min, option.prediction.validation.typical)
        promises = believed and clears(option.speedup, needed)
        distrust = _refusal(option, arm, contradicted=wrong or option.cost in withheld) if promises else None
        bar = _bar(option, needed, arm_runs, replays) if promises and distrust is None else None
        worth = promises and distrust is None and bar is None
        options.append(
            Advice(option.change, option.speedup, option.cost, worth, tried, option.serial, wrong, bar, distrust)
        )
    return ArmAdvice(
        arm,
        tuple(sorted(_smallest(options), key=lambda advice: -advice.speedup.median)),
        error=plain.validation.typical,
        within_tolerance=plain.validation.within_tolerance,
        from_blocks=plain.interval_from == "blocks",
        resolution=resolution,
        doubts=in_order([*doubts, *_doubts_of(options, arm)]),
        noise_floor=noise_floor,
        iterable=is_iterable(arm, runs) and not all(run.record.facts.copies == 1 for run in arm_runs),
        barred=_loader_bar(arm_runs, replays, gain_min),
        assumptions=tuple(dict.fromkeys(text for entry in candidates for text in entry.prediction.assumptions)),
    )


def _doubts_of(options: Sequence[Advice], arm: str) -> Iterator[Doubt]:
    """Yield the doubts that bar single changes: another arm contradicts it, or workers may share one resource."""
    for option in options:
        if option.contradicted:
            yield doubt("contradicted", arm, where=option.change)
        if option.bar == "serial":
            yield doubt("serial", arm, where=option.change)


def is_iterable(arm: str, runs: Mapping[str, Sequence[RunData]]) -> bool:
    """True if a run of any arm with the same ``data.source`` as ``arm`` recorded that this source has no index. Runs of
    other arms count, because a run does not record this if only its workers open the source. Without a ``data.source``,
    only runs of ``arm`` count."""

    def source(run: RunData) -> object:
        return lookup(run.record.config, "data.source", None)

    arm_source = source(runs[arm][0])
    same_source = (
        runs[arm]
        if arm_source is None
        else [run for group in runs.values() for run in group if source(run) == arm_source]
    )
    return any(run.record.facts.iterable for run in same_source)


def _edited(arm: str, runs: Mapping[str, Sequence[RunData]], replays: Replays) -> Iterator[_Option]:
    records = [run.record for group in runs.values() for run in group]
    for change, cost in _edits(runs[arm], replays):
        edits = parse_edits([change])
        if bar_of(edits, runs[arm], replays) == "no loader":
            continue
        tried = _pretokenized(arm, runs) if cost == "pretokenized copy" else validation_arms(records, arm, edits)
        prediction = replays.predict(edits)
        yield _Option(
            change,
            cost,
            prediction,
            next(iter(tried), None),
            with_any_handover(replays, prediction).speedup,
            serial_speedup(replays, prediction),
        )


def _fed(arm: str, runs: Mapping[str, Sequence[RunData]], replays: Replays) -> Iterator[_Option]:
    """Yield replays of ``arm`` with the loader of each other arm that differs from ``arm`` only in its data path.

    The loader's times come from the data-only control of its arm; an arm without this control is left out."""
    data_only = {
        str(group[0].record.of): group
        for group in runs.values()
        if group and group[0].record.control == "data-only" and group[0].record.of != arm
    }
    for name, loaders in data_only.items():
        if runs.get(name) and set(_differing(arm, name, runs)) <= PATH_KEYS:
            with suppress(ReplayError):  # no block in which both finished
                prediction = replays.fed_by(loaders)
                yield _Option(name, "its data path", prediction, name, prediction.speedup)


def _pretokenized(arm: str, runs: Mapping[str, Sequence[RunData]]) -> list[str]:
    """Return the arms that differ from ``arm`` only in reading pretokenized documents instead of text."""
    plain = [name for name, group in runs.items() if name != arm and group and group[0].record.control is None]
    return [
        name
        for name in plain
        if _differing(arm, name, runs)
        == {"data.path": str(lookup(runs[arm][0].record.config, "data.path", "")).replace("text", "tokens", 1)}
    ]


def _differing(arm: str, other: str, runs: Mapping[str, Sequence[RunData]]) -> dict[str, object]:
    """Return the dotted keys in which ``other`` differs from ``arm``, except the seed, with the values of ``other``."""
    config, other_config = (runs[name][0].record.config for name in (arm, other))
    values = flatten(other_config)
    return {key: values.get(key) for key in differing(config, other_config) if key != "seed"}


def _edits(runs: Sequence[RunData], replays: Replays) -> list[tuple[str, AdviceCost]]:
    """Return each change of these runs' settings that may help: (edit, cost), as ("workers=2", "processes").

    Cost: what the user has to spend or change."""
    config, facts = runs[0].record.config, runs[0].record.facts
    workers = int(lookup_number(config, "data.workers", 0))
    prefetch = int(lookup_number(config, "data.prefetch", 2))
    numbers = [n for n in ADVISED_WORKERS if n > workers]
    if workers >= max(ADVISED_WORKERS):  # More processes help if they wait for a disk or a network, but not for a core.
        numbers = [times * workers for times in WORKER_MULTIPLES if replays.has_cores_for(times * workers)]
    changes: list[tuple[str, AdviceCost]] = [(f"workers={n}", "processes") for n in numbers]
    # Batches cost the same in any process if no worker is slow.
    if workers and facts.attached is not None and not replays.unequal and replays.slow_worker is None:
        changes.append(("workers=0", "no processes"))
    if workers:
        changes.append((f"prefetch={2 * prefetch}", "memory"))
    if not str(lookup(config, "data.path", "")).startswith("tokens") and replays.tokenizes:
        changes.append((NO_TOKENIZING, "pretokenized copy"))
    sync = lookup(config, "compute.sync", BEFORE["compute.sync"])
    reads_norm = sync == "norm" and lookup(config, "compute.check_finite", True) is not False
    if facts.asynchronous and (reads_norm or sync == "every-step"):
        changes.append(("sync=late", "late check"))
    return changes


def _bar(one: _Option, least: float, own: Sequence[RunData], replays: Replays) -> AdviceBar | None:
    """Return the reason in the loader's records not to recommend ``one``; None if there is none. ``own``: runs of the
    arm. ``least``: smallest gain worth recommending, a fraction. Reason "serial": no such gain remains if only one
    worker at a time gets what it waits for."""
    if one.cost in NUMBERS and (bar := bar_of(parse_edits([one.change]), own, replays)) is not None:
        return bar
    return "serial" if is_serial(one.serial, least) else None


def _refusal(one: _Option, arm: str, *, contradicted: bool) -> Doubt | None:
    """Return the doubt for which the prediction of ``one`` is not recommended; None if there is no such doubt.

    ``contradicted``: True if an arm that already has this change measured otherwise."""
    if contradicted:
        return doubt("contradicted", arm, where=one.change)
    validation = one.prediction.validation
    return None if validation.within_tolerance else doubt("replay off", arm, share=validation.typical)


def _loader_bar(own: Sequence[RunData], replays: Replays, least: float) -> Bar | None:
    """Return why the effect of more workers cannot be predicted; None if it can.

    None, too, if removing all data work would gain at most ``least`` (a fraction). ``own``: runs of the arm."""
    bar = bar_of(parse_edits([f"workers={max(ADVISED_WORKERS[0], 2 * replays.workers)}"]), own, replays)
    if bar is None or not clears(replays.predict(without_stages(STAGES)).speedup, least):
        return None
    return bar


def _smallest(options: Sequence[Advice]) -> list[Advice]:
    """Return all options, but at most one that adds worker processes remains worth recommending (``worth``). Of two
    such options, the later one remains only if its speed-up is larger by more than the fraction
    :data:`AS_GOOD_WITHIN`."""
    recommended: dict[str, Advice] = {}
    for option in options:
        if option.worth and option.cost == "processes":
            cheaper = recommended.get(option.cost)
            if cheaper is None or option.speedup.median > cheaper.speedup.median * (1 + AS_GOOD_WITHIN):
                recommended[option.cost] = option
    return [
        replace(entry, worth=False) if entry.cost in recommended and entry is not recommended[entry.cost] else entry
        for entry in options
    ]
