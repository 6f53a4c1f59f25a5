"""Predicts a comparison under the scenario's ``whatif`` edits: replays both arms, block by block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.analysis.replay.predict import Prediction, predict
from harness.analysis.report_types import WhatIf
from harness.analysis.statistics import Estimate, from_blocks
from harness.scenario.edits import Edits, parse_edits
from harness.scenario.overrides import edit_texts
from harness.study.records import StudyRecord
from harness.study.run_data import RunData
from trainer.errors import InputError
from trainer.json_types import objects


def whatifs(study: StudyRecord, names: tuple[str, str], runs: Mapping[str, Sequence[RunData]]) -> tuple[WhatIf, ...]:
    """The comparison of the arms ``names`` as it is (``edits`` empty), then under each of the scenario's edits."""
    asked = [parse_edits(edit_texts(edits)) for edits in objects(study.scenario_text.get("whatif"))]
    return tuple(_whatif(names, runs, edits) for edits in (Edits(), *asked)) if asked else ()


def _whatif(names: tuple[str, str], runs: Mapping[str, Sequence[RunData]], edits: Edits) -> WhatIf:
    written = ", ".join(edits.texts)
    try:
        base, other = (predict(runs.get(arm, ()), edits) for arm in names)
    except InputError as error:
        return WhatIf(written, reason=str(error))
    known = base.over_blocks(base.step_ms), other.over_blocks(other.step_ms)
    return WhatIf(written, *known, _ratio(base, other), sum(base.waits_ms.values()))


def _ratio(base: Prediction, other: Prediction) -> Estimate | None:
    shared = sorted(set(base.block_ms) & set(other.block_ms))
    return from_blocks([math.log(base.block_ms[block] / other.block_ms[block]) for block in shared])
