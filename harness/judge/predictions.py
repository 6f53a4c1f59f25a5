"""Decides which predictions a replay of an arm supports, and predicts a scenario's ``whatif`` edits.

Some arms cannot be replayed at all (:func:`refusal`), as too much of their time was not recorded. Of others some
changes are barred (:func:`bar_of`), as the recording does not show what they depend on. Advice, ``harness whatif`` and
the scenario's table state the doubts of :func:`edit_doubts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from harness.explain.ledger import Blocks, measure
from harness.explain.replay.predict import Replays
from harness.explain.replay.prediction import TOLERANCE, Prediction
from harness.explain.replay.refusals import ReplayError
from harness.explain.replay.validation_arms import validation_arms
from harness.explain.spans import spans_of
from harness.explain.speeds import speed, steps_per_s
from harness.explain.statistics import MIN_BLOCKS, Estimate, Likeness, estimate, from_blocks
from harness.judge.comparisons import Controls, alike_blocks, arm_floor
from harness.judge.doubts import Bar, Claim, Doubt, RemedyKind, barred, doubt, in_order
from harness.judge.policy import ADVISED_GAIN_MIN, AS_GOOD_WITHIN, ENOUGH_BLOCKS, RESTART_SHARE_MAX
from harness.judge.report_types import WhatIf
from harness.judge.unseen import unseen
from harness.scenario.edits import Edits, parse_edits
from harness.scenario.overrides import edit_texts
from harness.study.records import COMMAND, StudyRecord
from harness.study.run_data import RunData
from trainer.json_types import objects

BARS: dict[str, Bar] = {kind: kind for kind in get_args(Bar)}


def few_blocks_remedy(study: StudyRecord) -> RemedyKind:
    """Return what to ask for where blocks are too few: the rest of an unfinished study, if that is enough.

    Studies of programs and of two states of the code cannot be resumed (``harness.launch.study.read_resumable``).
    """
    resumable = study.scenario_file and not any(COMMAND in arm.declared or arm.code is not None for arm in study.arms)
    unfinished = study.status != "done" and study.blocks >= MIN_BLOCKS
    return "finish the study" if resumable and unfinished and not study.is_training else "more blocks"


def declared_floor(study: StudyRecord) -> float | None:
    """The noise floor of the scenario, as a fraction; None where it declares none, or a study.json no fraction."""
    declared = study.scenario_text.get("noise_floor")
    return declared if isinstance(declared, float) and 0 < declared < 1 else None


def refusal(runs: Sequence[RunData]) -> Doubt | None:
    """Return why ``runs`` support no prediction; None if a replay supports one."""
    hidden = unseen(runs)
    if hidden is None:
        return None
    recorded = all(run.has_spans and len(spans_of(run).kernels) for run in runs)
    return barred(hidden.doubts(runs[0].record.arm, recorded=recorded), "prediction")


def loader_doubts(runs: Sequence[RunData], replays: Replays) -> Iterator[Doubt]:
    """Yield what a replay of ``runs`` does not know of other loader settings."""
    arm = runs[0].record.arm
    if not all(run.record.facts.has_loader for run in runs):
        yield doubt("no loader", arm)
    if replays.unequal:
        yield doubt("no items" if all(run.record.facts.gave_no_items(1) for run in runs) else "unequal", arm)
    if (hidden := unseen(runs)) is not None and hidden.sampling > RESTART_SHARE_MAX:
        yield doubt("sampler", arm, share=hidden.sampling)
    if hidden is not None and hidden.restarting > RESTART_SHARE_MAX:
        yield doubt("restarts", arm, share=hidden.restarting)


def bar_of(edits: Edits, runs: Sequence[RunData], replays: Replays) -> Bar | None:
    """Return why ``runs`` cannot be predicted under ``edits``; None if they can."""
    claims: list[Claim] = ["workers"] if edits.workers is not None and edits.workers != replays.workers else []
    claims += ["prefetch"] if edits.prefetch is not None else []
    known = [*loader_doubts(runs, replays)] if claims else []
    found = next((one for claim in claims if (one := barred(known, claim)) is not None), None)
    return None if found is None else BARS[found.kind]


def prediction_doubts(unedited: Prediction, arm: str, few_blocks: RemedyKind = "more blocks") -> Iterator[Doubt]:
    """Yield why a prediction by the replay of ``unedited`` is shown only to those who ask for it."""
    if not unedited.validation.within_tolerance:
        yield doubt("replay off", arm, share=unedited.validation.typical)
    if unedited.interval_from != "blocks":
        yield doubt("too few blocks", arm, blocks=ENOUGH_BLOCKS, remedy=few_blocks)


def serial_speedup(replays: Replays, found: Prediction) -> float | None:
    """The speed-up by edits where only one of several workers at a time gets what its stages wait for.

    A step then lasts as long as the stages of its batches wait: replay has workers wait side by side. It lasts no
    longer than it did: where several workers were recorded, their waits hold those for one another. None where no
    worker is added and no stage is removed, or where that is as fast.
    """
    removed = [name for name, edit in found.edits.stages.items() if edit.removes]
    more_workers = found.edits.workers is not None and found.edits.workers > replays.workers
    if not more_workers and not ("tokenize" in removed and replays.busy_workers > 1):
        return None
    step_ms = found.step_ms.median
    slowest_ms = min(max(step_ms, replays.off_core_ms(without=removed)), found.measured_ms.median)
    return found.speedup.median * step_ms / slowest_ms if slowest_ms > step_ms * (1 + AS_GOOD_WITHIN) else None


def is_serial(serial: float | None, least: float) -> bool:
    """True if no speed-up beyond ``least`` remains where workers wait for one shared resource."""
    return serial is not None and serial - 1 <= max(least, TOLERANCE)


def clears(speedup: Estimate, least: float) -> bool:
    """True if the interval of ``speedup`` is above 1, and its median above 1 by more than ``least``."""
    return speedup.ci_low is not None and speedup.ci_low > 1 and speedup.median - 1 > least


def contradicts(predicted: Estimate, serial: float | None, measured: Estimate | None, least: float) -> bool:
    """True if an arm measured this change otherwise: neither interval includes the median of the other.

    ``least``: as a fraction, what two measurements of the same may differ by.
    """
    if measured is None or None in (measured.ci_low, measured.ci_high, predicted.ci_low, predicted.ci_high):
        return False
    if (measured.ci_low or 0) <= predicted.median <= (measured.ci_high or math.inf):
        return False
    low = min(predicted.ci_low or 0.0, serial or math.inf)
    return not low / (1 + least) <= measured.median <= (predicted.ci_high or math.inf) * (1 + least)


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study by arm, controls included, with what judging a prediction about one of them takes."""

    study: StudyRecord
    runs: Mapping[str, Sequence[RunData]]

    def blocks(self, arm: str) -> Blocks:
        """The ledgers of an arm by block."""
        found = ((run.record.block, measure(run)) for run in self.runs.get(arm, ()))
        return {block: ledger for block, ledger in found if ledger is not None}

    @property
    def all_blocks(self) -> Mapping[str, Blocks]:
        """The ledgers of every arm."""
        return {name: self.blocks(name) for name in self.runs}

    @property
    def controls(self) -> Controls:
        """The controls of every arm."""
        first = {name: runs[0].record for name, runs in self.runs.items() if runs}
        return Controls(
            {(one.control, one.of): self.blocks(name) for name, one in first.items() if one.control and one.of}
        )

    def floor(self, arm: str) -> float | None:
        """The noise floor of an arm."""
        return arm_floor(arm, self.all_blocks, self.controls, declared_floor(self.study))

    def alike(self, arm: str) -> Likeness | None:
        """How alike neighbouring blocks are in what is compared with an arm."""
        return alike_blocks(arm, self.all_blocks, self.controls)

    def tried_by(self, arm: str, edits: Edits) -> Sequence[str]:
        """Arms that already are what ``edits`` make of ``arm``."""
        return validation_arms([run.record for runs in self.runs.values() for run in runs], arm, edits)


def edit_doubts(among: StudyRuns, arm: str, replays: Replays, found: Prediction) -> tuple[Doubt, ...]:
    """Return the doubts about the prediction ``found`` for ``arm``, the same for every reader."""
    doubts = [
        *prediction_doubts(found, arm, few_blocks_remedy(among.study)),
        *loader_doubts(among.runs[arm], replays),
    ]
    least = max(among.floor(arm) or 0.0, found.validation.typical, ADVISED_GAIN_MIN)
    where, serial = ", ".join(found.edits.texts), serial_speedup(replays, found)
    if clears(found.speedup, least) and is_serial(serial, least):
        doubts.append(doubt("serial", arm, where=where))
    for other in among.tried_by(arm, found.edits):
        measured = speed(among.blocks(arm), among.blocks(other), steps_per_s, alike=among.alike(arm))
        if contradicts(found.speedup, serial, measured, least):
            doubts.append(doubt("contradicted", arm, where=where))
    return in_order(doubts)


def whatifs(study: StudyRecord, names: tuple[str, str], runs: Mapping[str, Sequence[RunData]]) -> tuple[WhatIf, ...]:
    """The comparison of the arms ``names`` as it is (``edits`` empty), then under each of the scenario's edits.

    A candidate that already is what the edits make of the baseline (two ranks, of one) checks the prediction.
    """
    asked = [parse_edits(edit_texts(edits)) for edits in objects(study.scenario_text.get("whatif"))]
    among = StudyRuns(study, runs)
    return tuple(_whatif(among, names, edits) for edits in (Edits(), *asked)) if asked else ()


def _whatif(among: StudyRuns, names: tuple[str, str], edits: Edits) -> WhatIf:
    written = ", ".join(edits.texts)
    base_name, other_name = names
    try:
        base, doubts = _predicted(among, base_name, edits)
    except ReplayError as error:
        return WhatIf(written, reason=error.gap)
    if base is None:
        return WhatIf(written, doubts=doubts)
    found = WhatIf(
        written,
        base.over_blocks(base.step_ms),
        waits_ms=sum(base.waits_ms.values()),
        measured_ms=step_ms_of(among.runs[other_name]) if other_name in among.tried_by(base_name, edits) else None,
        doubts=doubts,
    )
    try:
        other, more = _predicted(among, other_name, edits)
    except ReplayError as error:
        return replace(found, candidate_reason=error.gap)
    found = replace(found, doubts=in_order([*doubts, *more]))
    if other is None:
        return found
    return replace(found, candidate_ms=other.over_blocks(other.step_ms), ratio=_ratio(base, other))


def _predicted(among: StudyRuns, arm: str, edits: Edits) -> tuple[Prediction | None, tuple[Doubt, ...]]:
    """The prediction of an arm with its doubts; None where one of them bars it."""
    own = among.runs.get(arm, ())
    if own and (why := refusal(own)) is not None:
        return None, (why,)
    replays = Replays(own)
    if bar_of(edits, own, replays) is not None:
        return None, in_order(loader_doubts(own, replays))
    found = replays.predict(edits)
    return found, edit_doubts(among, arm, replays, found)


def step_ms_of(runs: Sequence[RunData]) -> Estimate | None:
    """Mean step time in milliseconds, over the blocks of one arm; None where it measured none."""
    ledgers = [ledger for run in runs if (ledger := measure(run)) is not None]
    return estimate({one.record.block: {0: (one.mean_step_ms, 1.0)} for one in ledgers})


def _ratio(base: Prediction, other: Prediction) -> Estimate | None:
    shared = sorted(set(base.block_ms) & set(other.block_ms))
    return from_blocks([math.log(base.block_ms[block] / other.block_ms[block]) for block in shared])
