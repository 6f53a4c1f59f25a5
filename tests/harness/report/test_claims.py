"""Claims about tokenization judged from tables whose truth is declared, and what arms learned up to a target loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from harness.analysis.claims import arm_use, use_of
from harness.analysis.ledger import measure
from harness.analysis.report_types import StudyReport
from harness.analysis.study import analyse
from harness.analysis.target_loss import steps_to
from harness.report import claims as claims_text
from harness.report import learned as learned_text
from harness.report.names import ArmNames
from harness.scenario.load import load_scenario
from harness.scenario.model import Scenario
from harness.study.run_data import RunData
from tests.harness.synthetic import Arm, build
from trainer.errors import InputError

# Of 2048 tokens in a step: 8 and 6.4 ms of tokenizing (1.25 times as fast), then 1.6 ms (5 times) and none.
COMPUTE = {"h2d": 0.0, "forward": 4.0, "backward": 7.0, "optimizer": 1.0, "sync": 4.0}
FAST = {"h2d": 0.0, "forward": 0.05, "backward": 0.05, "optimizer": 0.04, "sync": 0.0}
ARMS = [
    Arm("plain", tokenize=8.0, compute=COMPUTE),
    Arm("batched", tokenize=6.4, compute=COMPUTE),
    Arm("processes", tokenize=1.6, compute=COMPUTE, config={"data.tokenize_processes": 4}, facts={"cores": 8}),
    Arm("pool", tokenize=5.7, compute=COMPUTE, facts={"cores": 1}),
    Arm("waits", tokenize=0.5, compute={**COMPUTE, "sync": 12.7}),
    Arm("fixed", read=0.005, tokenize=0.0, pack=0.005, compute=FAST, tokens=2048),
]
CLAIMS = [
    {"claim": "batching", "arm": "batched", "baseline": "plain"},
    {"claim": "processes", "arm": "processes", "baseline": "plain"},
    {"claim": "pool", "arm": "pool", "baseline": "plain"},
    {"claim": "sync share", "arm": "waits", "baseline": None},
    {"claim": "sync share", "arm": "plain", "baseline": None},
    {"claim": "tokenization share", "arm": "plain", "baseline": None},
    {"claim": "everything together", "arm": "fixed", "baseline": "plain"},
    {"claim": "everything together", "arm": "batched", "baseline": "plain"},
    {"claim": "cpu use", "arm": "fixed", "baseline": "no such arm"},
]


def study(blocks: int = 7, **text: Any) -> StudyReport:
    record, runs = build(ARMS, blocks=blocks, repetitions=4)
    return analyse(replace(record, scenario_text={**record.scenario_text, **text}), runs)


def test_claims_are_judged_by_the_declared_truth() -> None:
    found = study(claims=CLAIMS)
    names = ArmNames([arm.name for arm in ARMS])
    assert [one.outcome for one in found.claims] == [
        *("holds", "holds", "does not hold", "holds", "does not hold", "holds"),
        *("holds", "does not hold", "not measurable"),
    ]
    ratios = [one.figure.median for one in found.claims[:3] if one.figure is not None]
    assert ratios == pytest.approx([8 / 6.4, 8 / 1.6, 8 / 5.7], rel=0.02)
    said = [claims_text.sentence(one, names) for one in found.claims]
    assert said[0].startswith("“Batching makes tokenization 20 to 30 % faster”: holds here: 1.2")
    assert said[0].endswith("as fast (batched against plain).")
    assert "1 cores can be no more than 1x" in said[2]
    assert "can be no more" not in said[1]
    assert said[-1].endswith("not measurable here: nothing was measured (fixed against no such arm).")
    text = claims_text.section(found.uses, found.claims, names)
    assert all(line in text for line in said[:2])
    (row,) = (line for line in text.splitlines() if line.startswith("| plain |"))
    assert " 33 / 16 / " in row
    assert "## Claims" not in claims_text.section(study().uses, study().claims, names)


def test_shares_sum_to_the_step_and_cores_are_those_of_the_spans() -> None:
    _, runs = build(ARMS[:1], blocks=1)
    ledger = measure(runs[0])
    assert ledger is not None
    use = use_of(runs[0], ledger)
    assert sum(use.shares.values()) == pytest.approx(1)
    step = 0.1 + 8 + 0.2 + 16 + 0.02
    assert use.shares["tokenization"] == pytest.approx(8 / step, rel=0.01)
    # On paper each span has used a core throughout, the time between phases too.
    assert sum(use.cores.values()) == pytest.approx(1, rel=0.01)
    assert use.cores["sync"] == pytest.approx(4 / step, rel=0.01)
    assert arm_use("plain", [use]).shares["Python"].median == pytest.approx(0.02 / step, rel=0.05)


def test_too_few_blocks_are_not_measurable() -> None:
    found = study(blocks=1, claims=CLAIMS[:1])
    assert found.claims[0].outcome == "not measurable"
    assert "too few blocks for an interval" in claims_text.sentence(found.claims[0], ArmNames(["batched", "plain"]))


def test_a_scenario_names_arms_that_exist_and_baselines_where_they_are_due(tmp_path: Any) -> None:
    path = tmp_path / "x.yaml"
    text = "name: x\nquestion: q\narms: {one: {}, two: {}}\nclaims: [{claim: batching, arm: one, baseline: tow}]\n"
    path.write_text(text)
    with pytest.raises(InputError, match=r"claims.*no arm 'tow'; did you mean 'two'\?"):
        load_scenario(str(path))
    path.write_text(text.replace("tow", "two"))
    assert load_scenario(str(path)).claims[0].baseline == "two"
    for claim in ({"claim": "batching", "arm": "one"}, {"claim": "sync share", "arm": "one", "baseline": "two"}):
        with pytest.raises(ValidationError, match="baseline"):
            Scenario.model_validate({"name": "x", "question": "q", "arms": {"one": {}, "two": {}}, "claims": [claim]})


def test_steps_to_a_loss_are_of_its_mean_over_ten_steps() -> None:
    steps, losses = np.arange(100, 130), np.concatenate([np.full(10, 4.0), np.full(20, 2.0)])
    assert steps_to(4.0, steps, losses) == 110  # of ten steps the mean is 4 after the tenth, number 109
    assert steps_to(3.01, steps, losses) == 115
    assert steps_to(2.0, steps, losses) == 120
    assert steps_to(1.9, steps, losses) is None
    assert steps_to(9.0, steps[:9], losses[:9]) is None


def test_what_was_learned_is_a_table_where_there_is_a_target() -> None:
    arms = [Arm("low", loss=3.0), Arm("high", loss=5.0)]
    record, runs = build(arms, blocks=5, repetitions=4, steps=9)
    runs = [RunData(replace(r.record, peak_memory_bytes=300 * 2**20), r.steps, r.spans, r.samples) for r in runs]
    found = analyse(replace(record, scenario_text={**record.scenario_text, "target_loss": 3.7}), runs)
    low, high = found.learned
    # The loss is 3 + exp(-batch / 50): the mean over ten steps is 3.7 or less from batch 23 on (exp(-18.4 / 50)).
    assert low.steps is not None
    assert low.steps.median == 24
    assert (low.reached, high.reached, high.steps) == (5, 0, None)
    assert low.tokens == 24 * 2048
    text = learned_text.section(found.learned, ArmNames(["low", "high"]))
    assert "| arm | loss at the end | steps to 3.7 |" in text
    assert "| 5 of 5 | 300 |" in text
    assert "| 0 of 5 | 300 |" in text
    assert analyse(record, runs).learned == ()
    assert learned_text.section((), ArmNames([])) == ""
