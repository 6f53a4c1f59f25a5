"""Claims about tokenization judged from tables whose truth is declared, and what arms learned up to a target loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from harness.explain.ledger import measure
from harness.explain.statistics import Estimate, from_amounts, from_block_values
from harness.judge import claims
from harness.judge.claims import JudgedClaim, RunUse, arm_use, use_of
from harness.judge.losses import Learned, learned, steps_to
from harness.judge.probes.machine_load import HostLoad, RoleLoad
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.scenario.load import load_scenario
from harness.scenario.model import Scenario
from harness.show import numbers as said_of
from harness.show.learning import target_section
from harness.show.names import ArmNames
from harness.study.contract import STEP_COLUMNS
from harness.study.records import RunRecord
from harness.study.run_data import RunData
from harness.study.tables import make_table
from tests.harness.show.studies import built
from tests.harness.synthetic import NOISE, Arm, build
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
    Arm("stored", read=0.005, tokenize=0.0, pack=0.005, compute=FAST, facts={"stored_bytes": 2500, "text_bytes": 1000}),
]
NAMES = ArmNames([arm.name for arm in ARMS])
CALM = dict.fromkeys(NOISE, 0.002)
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


OWN = [
    ("tokenizing speed", ["batched", "plain"], 1.2, 1.3, "holds"),
    ("tokenizing speed", ["batched", "plain"], 2, 3, "does not hold"),
    ("chunk ms", ["plain"], 7.5, 9.5, "holds"),
    ("step ms", ["plain"], 10, 40, "holds"),
    ("tokens/s", ["fixed"], 0, 10, "does not hold"),
    ("tokens/s", ["fixed", "plain"], 50, 200, "holds"),
    ("sync share", ["waits"], 0.4, 0.6, "holds"),
    ("device use", ["plain"], 0.3, 0.9, "not measurable"),  # a CPU is no device that the host runs ahead of
    ("cpu use", ["no such arm"], 1, 2, "not measurable"),
    ("stored bytes per byte of text", ["stored"], 2, 3, "holds"),
    ("stored bytes per byte of text", ["plain"], 2, 3, "not measurable"),
]


def study(arms: list[Arm], claims: Sequence[Any] = (), **how: Any) -> StudyReport:
    record, runs = built(*arms, **{"blocks": 3, "noise": CALM, **how})
    return analyse(replace(record, comparisons=[], scenario_text={**record.scenario_text, "claims": [*claims]}), runs)


@pytest.fixture(scope="module")
def judged_claims() -> StudyReport:
    own = [{"figure": figure, "arms": arms, "from": low, "to": high} for figure, arms, low, high, _ in OWN]
    unknown = {"figure": "of a later version", "arms": ["plain"], "from": 1, "to": 2}
    damaged = {"figure": "step ms", "arms": ["plain"], "from": "a", "to": None}
    return study(ARMS, [*CLAIMS, *own, unknown, damaged])


def test_claims_are_judged_by_the_declared_truth(judged_claims: StudyReport) -> None:
    found, uses = judged_claims.claims[: len(CLAIMS)], judged_claims.uses
    assert [one.outcome for one in found] == [
        *("holds", "holds", "does not hold", "holds", "does not hold", "holds"),
        *("holds", "does not hold", "not measurable"),
    ]
    ratios = [one.figure.median for one in found[:3] if one.figure is not None]
    assert ratios == pytest.approx([8 / 6.4, 8 / 1.6, 8 / 5.7], rel=0.02)
    said = [said_of.claim_sentence(one, NAMES) for one in found]
    assert said[0].startswith("“Batching makes tokenization 20 to 30 % faster”: holds here: 1.2")
    assert said[0].endswith("(batched against plain); no A/A control shows how much two runs of one arm differ.")
    # 1.4 times is what no sharing on one core gives: not "can be no more than 1x" beside it.
    assert "more than 2 processes on 1 core can give by sharing the work, so something else" in said[2]
    assert "can be no more" not in said[1]
    slow = replace(found[2], figure=Estimate(0.9, 0.8, 1.0, 7))
    assert "; 2 processes on 1 core can be no more than 1x by sharing the work" in said_of.claim_sentence(slow, NAMES)
    assert (found[-1].figure, found[-1].without) == (None, ("fixed", "no such arm"))
    text = said_of.claims(uses, found, NAMES)
    assert all(line in text for line in said[:2])
    (row,) = (line for line in text.splitlines() if line.startswith("| plain |"))
    assert " 33 / 16 / " in row
    assert not said_of.claims(uses, (), NAMES)


def test_claims_with_bounds_of_ones_own_are_judged_by_the_declared_truth(judged_claims: StudyReport) -> None:
    found = judged_claims.claims[len(CLAIMS) :]
    assert [one.outcome for one in found] == [outcome for *_, outcome in OWN]
    assert [one.without for one in found if one.figure is None] == [("plain",), ("no such arm",), ("plain",)]
    assert [(one.kind.of, one.kind.low, one.kind.high) for one in found] == [(of, *ends) for of, _, *ends, _ in OWN]
    words = {"holds": ": held: ", "does not hold": ": not held: ", "not measurable": ": not measured: "}
    assert all(words[one.outcome] in said_of.claim_sentence(one, NAMES) for one in found)


def claim_of(arms: list[Arm], claim: str = "batching", *, spans: bool = True, **how: Any) -> tuple[JudgedClaim, str]:
    """The claim about the arm ``batched`` against ``plain``, and its sentence."""
    asked = {"claim": claim, "arm": "batched", "baseline": "plain"}
    (found,) = study(arms, [asked], spans=spans, noise={}, **how).claims
    return found, said_of.claim_sentence(found, ArmNames([arm.name for arm in arms]))


def test_device_use_is_unknown_where_launches_leave_open_how_long_it_worked() -> None:
    """A device that is still being launched to has hardly any idle time that is sure, which is no use of 100 %."""
    _, (run, *_) = build([Arm("a")])
    ledger = measure(run)
    step_ms = ledger.mean_step_ms
    known = replace(ledger, device_starved_ms=step_ms / 4, device_busy_ms=step_ms / 2)
    assert use_of(run, known).device_use == pytest.approx(0.75)
    assert use_of(run, replace(known, device_busy_ms=None)).device_use is None


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"figure": "speed"}, "figure"),
        ({"from": 4}, "from 4 is above to 3"),
        ({"from": -1}, "from"),
        ({"to": float("inf")}, "to"),
        ({"arms": []}, "arms"),
        ({"arms": ["a", "b", "a"]}, "arms"),
        ({"figure": "sync share", "from": 2, "arms": ["a"]}, "is a share"),
        ({"figure": "device use", "from": 0.5, "to": 90, "arms": ["a"]}, "is a share"),
        ({"arms": ["a", "a"]}, "a is given twice in arms"),
        ({"arm": "a"}, "arm"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(claim: dict[str, Any], words: str) -> None:
    own = {"figure": "step ms", "arms": ["a", "b"], "from": 2.0, "to": 3.0, "text": "twice"}
    kept = Scenario.model_validate({"name": "x", "question": "?", "arms": {"a": {}, "b": {}}, "claims": [own]})
    assert kept.model_dump(mode="json")["claims"] == [own]
    own |= claim
    with pytest.raises(ValidationError, match=words):
        Scenario.model_validate({"name": "x", "question": "?", "arms": {"a": {}, "b": {}}, "claims": [own]})


def test_a_claim_is_no_surer_than_the_arm_against_itself() -> None:
    """1.25 times as fast, in every block; but a second run of the same arm is 1.10 times as fast as the first."""
    plain, batched = (Arm(name, tokenize=ms, compute=COMPUTE) for name, ms in (("plain", 8.0), ("batched", 6.4)))
    alone, _ = claim_of([plain, batched])
    assert (alone.outcome, alone.noise_floor) == ("holds", None)
    found, said = claim_of([plain, batched, plain.variant("a-a", tokenize=8.0 / 1.1)], blocks=5)
    assert found.noise_floor == pytest.approx(0.1, abs=0.04)
    assert found.outcome == "not measurable"
    assert "; the interval, with the noise floor of " in said
    assert "no A/A control" not in said
    few, said = claim_of([plain, batched], blocks=1)
    assert few.outcome == "not measurable"
    assert "too few blocks for an interval" in said


def test_arms_that_differ_in_more_than_the_claim_are_said_to() -> None:
    each = {"data.tokenize": "per-sample"}
    plain = Arm("plain", tokenize=8.0, compute=COMPUTE, config=each)
    other = {"data.tokenize": "batched", "data.path": "text-packed"}
    _, said = claim_of([plain, Arm("batched", tokenize=6.4, compute=COMPUTE, config=other)], blocks=1)
    assert "; the arms differ in data.path as well" in said
    same, said = claim_of([plain, Arm("batched", tokenize=6.4, compute=COMPUTE, config=each)], blocks=1)
    assert same.outcome == "not measurable"
    assert "; both have data.tokenize per-sample, so the claim was not tested" in said


def test_a_smaller_model_is_no_fix() -> None:
    """All fixes together gave 1.01x; with a model of one layer beside them 104x was said to be theirs."""
    plain = Arm("plain", tokenize=8.0, compute=COMPUTE, config={"model.layers": 8, "data.path": "text-padded"})
    fixes = {"data.path": "tokens-padded", "data.workers": 2, "compute.sync": "late"}
    for layers, remark in ((8, False), (1, True)):
        config = {**fixes, "model.layers": layers}
        fast = Arm("batched", read=0.005, tokenize=0.0, pack=0.005, compute=FAST, tokens=2048, config=config)
        found, said = claim_of([plain, fast], "everything together", spans=False)
        assert found.outcome == "holds"
        assert ("the arms differ in model.layers as well" in said) == remark


def test_what_no_table_says_of_tokenization_is_no_share_of_nothing() -> None:
    """Half of the step is fetch, and no span says what of it was tokenizing."""
    _, runs = build([Arm("plain", tokenize=16.0, compute=COMPUTE)], blocks=1)
    run = RunData(runs[0].record, runs[0].steps, None, None)
    ledger = measure(run)
    assert ledger.phase_ms["fetch"] > 10
    assert "tokenization" not in use_of(run, ledger).shares


def test_the_speed_of_training_counts_no_padding() -> None:
    """As many positions a second; a tenth of one arm's positions train."""
    padded = Arm("plain", compute=COMPUTE, tokens=2048, trained=205)
    full = Arm("batched", compute=COMPUTE, tokens=2048, trained=2048)
    found, _ = claim_of([padded, full], "everything together", spans=False)
    assert found.figure.median == pytest.approx(2048 / 205, rel=0.02)


def test_a_share_and_a_time_have_no_interval_beyond_what_they_can_be() -> None:
    spread = [0.97, 0.60, 0.99, 0.75, 0.98]
    found = arm_use("x", [RunUse({"sync": one}, {}, None, None, 97 * one**6, None, None) for one in spread])
    values = [97.0, 20.0, 400.0, 30.0, 90.0]
    plain, amounts = from_block_values(values), from_amounts(values)
    assert found.shares["sync"].ci_high == 1
    assert (found.step_ms.ci_low or 0) > 0 > (plain.ci_low or 0)
    assert 0 < (amounts.ci_low or 0) < amounts.median == 90.0 < (amounts.ci_high or 0)


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


def test_of_several_ranks_all_processes_are_counted_and_each_tokenizes_its_own_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table of rank 0 has the tokens of all: each of two ranks tokenized half of them, in the time that it says."""
    roles = [
        RoleLoad(role, 1, cores, *[None] * 7)
        for role, cores in (("main", 0.75), ("loaders", 0.125), ("ranks", 0.875), ("sampler", 0.01))
    ]
    monkeypatch.setattr(claims, "host_load", lambda _: [HostLoad("plain", 1.0, roles)])
    uses = {}
    for name, facts in (("one", {}), ("two", {"ranks": 2}), ("nodes", {"ranks": 2, "nodes": 2})):
        _, runs = build([Arm("plain", tokenize=8.0, compute=COMPUTE, tokens=2048, facts=facts)], blocks=1)
        ledger = measure(runs[0])
        assert ledger is not None
        uses[name] = use_of(runs[0], ledger)
    assert uses["one"].tokenizing_ms == pytest.approx(8 / 2.048, rel=0.02)
    assert uses["two"].tokenizing_ms == pytest.approx(8 / 1.024, rel=0.02)
    assert uses["two"].all_cores == pytest.approx(1.75)
    assert uses["nodes"].all_cores is None  # those of other machines were not sampled here
    judged = study(ARMS[:2], CLAIMS[:1], blocks=1).claims
    for name, said in (("one", False), ("two", True)):
        text = said_of.claims([arm_use("plain", [uses[name]])], judged, NAMES)
        assert ("Of several ranks the shares and the cores by part are those of rank 0" in text) == said


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
    assert steps_to(2.0, steps, np.where(steps < 125, losses, np.nan)) == 120
    assert steps_to(2.0, steps, np.where(steps == 112, np.nan, losses)) == 123  # ten after the NaN


def of_losses(target: float, *curves: list[float], failed: int = 0) -> Learned:
    """What is said of runs with these losses, by block."""
    runs = {}
    for block, losses in enumerate(curves):
        table = {"step": list(range(len(losses))), "loss": losses, "wall_ns": [10**6] * len(losses)}
        record = RunRecord("arm", block, "done")
        ledger = measure(RunData(record, make_table(STEP_COLUMNS, table), None, None))
        assert ledger is not None
        runs[block] = ledger
    return learned("arm", target, runs, [], 100.0, 2.0, failed)


def test_an_arm_that_leaves_the_target_again_is_not_shown_with_the_loss_it_had() -> None:
    found = of_losses(3.0, [4.0] * 10 + [2.0] * 20 + [math.nan] * 10)
    assert (found.reached, found.left, found.diverged, found.loss) == (1, 1, 1, None)
    text = target_section([found], ArmNames(["arm"]))
    assert "| arm | **diverged** in 1 of 1 | 15.0 [no interval] |" in text
    assert "| 1 of 1; 1 ended above it again |" in text
    # A plateau at 3.5, and ten lucky steps in the middle of it.
    lucky = of_losses(3.0, [3.5] * 40 + [2.9] * 10 + [3.5] * 40)
    assert (lucky.reached, lucky.left) == (1, 1)


def test_runs_that_never_come_to_the_target_count_in_the_median_of_the_steps() -> None:
    """The fast ones of five are not the arm: three come there after 20, 30 and 40 steps, two not within 60."""
    falling = [[4.0] * (steps - 10) + [2.0] * (70 - steps) for steps in (20, 30, 40)]
    never = [[4.0] * 60] * 2
    found = of_losses(2.0, *falling, *never, failed=1)
    assert (found.reached, found.runs, found.failed) == (3, 5, 1)
    assert found.steps == Estimate(40.0, None, None, 5)
    assert found.tokens == 4000
    assert found.seconds == pytest.approx(0.08)
    assert "| 3 of 5; 1 more failed |" in target_section([found], ArmNames(["arm"]))
    assert of_losses(2.0, *falling, *never, *never).steps is None


def test_what_was_learned_is_a_table_where_there_is_a_target() -> None:
    arms = [Arm("low", loss=3.0), Arm("high", loss=5.0)]
    record, runs = build(arms, repetitions=4, steps=9, spans=False)
    runs = [RunData(replace(r.record, peak_memory_bytes=300 * 2**20), r.steps, r.spans, r.samples) for r in runs]
    found = analyse(replace(record, scenario_text={**record.scenario_text, "target_loss": 3.7}), runs)
    low, high = found.learned
    # The loss is 3 + exp(-batch / 50): the mean over ten steps is 3.7 or less from batch 23 on (exp(-18.4 / 50)).
    assert low.steps.median == 24
    assert (low.reached, high.reached, high.steps) == (5, 0, None)
    assert low.tokens == 24 * 2048
    text = target_section(found.learned, ArmNames(["low", "high"]))
    assert "| arm | loss at the end | steps to 3.7 |" in text
    assert "| 5 of 5 | 300 |" in text
    assert "| 0 of 5 | 300 |" in text
    assert analyse(record, runs).learned == ()
    assert target_section((), ArmNames([])) == ""
