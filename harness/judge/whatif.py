"""Predicts a comparison under the scenario's ``whatif`` edits: replays both arms, block by block.

A candidate that already is what the edits make of the baseline (two ranks, of one) checks the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.explain.ledger import measure
from harness.explain.replay.predict import Prediction, predict
from harness.explain.replay.recording import ReplayError
from harness.explain.replay.whatif import validation_arms
from harness.explain.statistics import Estimate, estimate, from_blocks
from harness.judge.report_types import WhatIf
from harness.scenario.edits import Edits, parse_edits
from harness.scenario.overrides import edit_texts
from harness.study.records import StudyRecord
from harness.study.run_data import RunData
from trainer.json_types import objects


def whatifs(study: StudyRecord, names: tuple[str, str], runs: Mapping[str, Sequence[RunData]]) -> tuple[WhatIf, ...]:
    """The comparison of the arms ``names`` as it is (``edits`` empty), then under each of the scenario's edits."""
    asked = [parse_edits(edit_texts(edits)) for edits in objects(study.scenario_text.get("whatif"))]
    return tuple(_whatif(names, runs, edits) for edits in (Edits(), *asked)) if asked else ()


def _whatif(names: tuple[str, str], runs: Mapping[str, Sequence[RunData]], edits: Edits) -> WhatIf:
    written = ", ".join(edits.texts)
    base_name, other_name = names
    try:
        base = predict(runs.get(base_name, ()), edits)
    except ReplayError as error:
        return WhatIf(written, reason=error.gap)
    found = WhatIf(
        written,
        base.over_blocks(base.step_ms),
        waits_ms=sum(base.waits_ms.values()),
        measured_ms=_measured(runs, base_name, other_name, edits),
    )
    try:
        other = predict(runs.get(other_name, ()), edits)
    except ReplayError as error:
        return replace(found, candidate_reason=error.gap)
    return replace(found, candidate_ms=other.over_blocks(other.step_ms), ratio=_ratio(base, other))


def _measured(runs: Mapping[str, Sequence[RunData]], base: str, other: str, edits: Edits) -> Estimate | None:
    """The candidate's step time, where it is what the edits ask for of the baseline: it checks the prediction."""
    records = [run.record for arm in (base, other) for run in runs.get(arm, ())]
    return measured_step_ms(runs[other]) if other in validation_arms(records, base, edits) else None


def measured_step_ms(runs: Sequence[RunData]) -> Estimate | None:
    """Mean step time in milliseconds, over the blocks of one arm; None where it measured none."""
    ledgers = [ledger for run in runs if (ledger := measure(run)) is not None]
    return estimate({one.record.block: {0: (one.mean_step_ms, 1.0)} for one in ledgers})


def _ratio(base: Prediction, other: Prediction) -> Estimate | None:
    shared = sorted(set(base.block_ms) & set(other.block_ms))
    return from_blocks([math.log(base.block_ms[block] / other.block_ms[block]) for block in shared])
