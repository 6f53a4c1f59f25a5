"""The chain from the gain in isolation to the gain in training, and witnesses that disagree: studies of known truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.explain.bounds import Bound
from harness.explain.exposure import Dose, DosePoint
from harness.explain.statistics import Estimate
from harness.judge.comparisons import Absent
from harness.judge.report_types import Comparison, PredictedRatio
from harness.judge.study import analyse
from harness.judge.waits import Waits
from harness.show.chain import ChainLink, chain
from harness.show.names import ArmNames
from harness.show.sentences import disagreements, sentence
from harness.show.why import _whatif_table
from tests.harness import synthetic
from tests.harness.show.studies import analysed, gain
from tests.harness.synthetic import Arm


@pytest.fixture(scope="module", name="inline")
def _inline() -> Comparison:
    """9 ms of tokenizing inline in a step of 39 ms against none."""
    return gain().compared[0]


@pytest.fixture(scope="module")
def alike() -> Comparison:
    return analysed(Arm("text"), Arm("tokens"), *Arm("text").controls("a-a", "ideal-data"), spans=False).compared[0]


@pytest.fixture(scope="module")
def quick() -> Comparison:
    """1 ms of tokenizing against half of that, without replays."""
    text = Arm("text")
    return analysed(text, Arm("tokens", tokenize=0.5), *text.controls("a-a", "ideal-data"), spans=False).compared[0]


def link_of(c: Comparison, name: str = "ceiling", **waits: Any) -> ChainLink:
    """The link of ``c`` of that name, with other waits of its baseline."""
    changed = replace(c, measured=replace(c.measured, baseline_waits=replace(c.measured.baseline_waits, **waits)))
    (link,) = (one for one in chain(changed) if one.name == name)
    return link


def test_every_link_of_an_inline_gain_has_its_number(inline: Comparison) -> None:
    """Every witness must say 1.30x."""
    found = {link.name: link for link in chain(inline)}
    assert list(found) == ["isolated", "share of the step", "hidden", "contended", "ceiling", "predicted", "measured"]
    assert found["isolated"].ratio == pytest.approx(9.3 / 0.3, rel=0.1)
    step = 0.1 + 9 + 0.2 + 0.1 + 9 + 17 + 3 + 0.6 + 0.02
    for name in ("share of the step", "predicted", "measured"):
        assert found[name].ratio == pytest.approx(step / (step - 9), rel=0.03), name
    assert found["ceiling"].ratio == pytest.approx(step / (step - 9.3), rel=0.03)
    assert "none of it is hidden" in found["hidden"].text


def test_a_hidden_gain_melts_at_the_hidden_link() -> None:
    text = Arm("text", tokenize=10, workers=1)
    tokens = Arm("tokens", tokenize=0, workers=1)
    c = analysed(text, tokens, *text.controls("a-a", "data-only"), *tokens.controls("data-only"), blocks=3).compared[0]
    found = {link.name: link for link in chain(c)}
    assert found["share of the step"].ratio > 1.3
    for name in ("ceiling", "predicted", "measured"):
        assert found[name].ratio == pytest.approx(1, abs=0.02), name
    assert "behind" in found["hidden"].text
    assert "backward" in found["hidden"].text  # the longest phase
    assert c.measured.verdict == "none"


def test_more_tokens_per_step_are_a_link_of_their_own() -> None:
    last = chain(analysed(Arm("padded", trained=900), Arm("packed", trained=1800), spans=False).compared[0])[-1]
    assert last.name == "trained tokens"
    assert last.ratio == pytest.approx(2, rel=0.02)
    assert "padding, not time" in last.text
    larger = analysed(Arm("small", trained=900), Arm("large", tokens=4096, trained=1800), spans=False).compared[0]
    assert "that part is the size of a step, not time" in chain(larger)[-1].text


def test_work_of_several_workers_that_is_longer_than_a_step_is_not_said_to_be_hidden(quick: Comparison) -> None:
    """Each of four is waited for in turn: 160 ms of work for a step of 40 ms hide nothing."""
    share = link_of(
        quick, "share of the step", step_ms=40.0, waited_ms=38.0, exposed_ms={"tokenize": 38.0},
        hidden_ms={"tokenize": 2.0}, parallel_ms={"tokenize": 120.0}, stage_work_ms={"tokenize": 160.0},
    )  # fmt: skip
    assert share.ratio is None
    assert share.text.endswith("more than a step, so not all of it can be waited for")


def test_a_prediction_far_from_the_measurement_is_named(inline: Comparison) -> None:
    assert not [line for line in disagreements(inline) if "replay" in line]
    replayed = inline.explained.predicted
    assert isinstance(replayed, PredictedRatio)
    wrong = replace(replayed, ratio=Estimate(1.0, 0.99, 1.01, 5))
    (found,) = [line for line in disagreements(explained(inline, predicted=wrong)) if "replay" in line]
    assert "1.000x" in found
    assert any("20 % off" in line for line in disagreements(explained(inline, predicted=replace(wrong, error=0.2))))


def explained(c: Comparison, **changes: object) -> Comparison:
    return replace(c, explained=replace(c.explained, **changes))


def a_dose(kind: str, low: float, high: float) -> Dose:
    slope = Estimate((low + high) / 2, low, high, 5)
    points = DosePoint(0, 1.0, 40.0, 1.0, None), DosePoint(4, 5.0, 44.0, 5.0, None)
    return Dose("text", "tokenize", kind, points=points, slope=slope)


@pytest.mark.parametrize(("replayed", "said"), [(1.504, False), (1.53, True)])
def test_witnesses_whose_intervals_are_next_to_nothing_may_differ_by_a_percent(
    inline: Comparison, replayed: float, said: bool
) -> None:
    """Steps that repeat to the microsecond: "1.500x, less than the 1.504x …, so part of the wait is not caused"."""
    ideal, other = (Estimate(one, one, one, 5) for one in (1.5, replayed))
    measured = replace(inline.measured, ideal=ideal, from_waits=other, step_time=ideal, noise_floor=0.0)
    found = disagreements(replace(inline, measured=measured, explained=replace(inline.explained, predicted=None)))
    assert any("less than the" in one for one in found) == said


def test_a_dose_that_contradicts_the_ledger_is_named(inline: Comparison) -> None:
    hidden = explained(inline, doses=(a_dose("hidden", -0.01, 0.05),))
    assert any("more of it costs nothing" in line for line in disagreements(hidden))
    exposed = explained(inline, doses=(a_dose("exposed", 0.95, 1.05),))
    assert not any("slowdown" in line for line in disagreements(exposed))
    assert "okenize of text is exposed: 1 ms more of it costs 1.00 ms" in sentence(exposed)
    contended = explained(inline, doses=(a_dose("contended", 0.3, 0.6),))
    assert any("takes cores from the step" in line for line in disagreements(contended))


def test_an_emulated_device_is_named_in_the_verdict(alike: Comparison) -> None:
    assert "emulated" not in sentence(alike)
    assert "on an emulated gh200" in sentence(explained(alike, emulated=("emulated gh200",)))


def test_where_events_do_not_tell_the_chain_says_from_least_to_most_what_data_costs(quick: Comparison) -> None:
    both = link_of(quick, "hidden", waited_range_ms=(0.09, 1.05), hidden_ms={"tokenize": 2.0}).text
    assert "it costs the step between 0.09 ms and 1.05 ms" in both
    assert "2.00 ms of it are likely hidden" in both


def test_without_spans_or_stages_the_chain_says_what_is_missing(alike: Comparison) -> None:
    unsplit = replace(alike, measured=replace(alike.measured, baseline_waits=Waits(30.0, None)))
    texts = {link.name: link.text for link in chain(unsplit)}
    assert texts["share of the step"] == "how long its data work takes was not measured"
    assert "not measured" in texts["contended"]
    assert alike.explained.whatifs == ()


def test_a_comparison_under_the_scenarios_edits() -> None:
    """As it is, 10 ms of tokenizing make the difference; without them there is none; beside faster compute, more."""
    arms = [Arm("text", tokenize=10), Arm("tokens", tokenize=0)]
    study, runs = synthetic.build(arms, [("text", "tokens")], blocks=3)
    study.scenario_text["whatif"] = [{"tokenize": 0}, {"device": "4x"}]
    plain, without, faster = analyse(study, runs).compared[0].explained.whatifs
    assert (plain.edits, without.edits, faster.edits) == ("", "tokenize=0", "device=4x")
    assert plain.ratio.median == pytest.approx(40.02 / 30.02, rel=0.03)
    assert without.ratio.median == pytest.approx(1, abs=0.01)
    left = 0.1 + 0.2 + 0.1 + 29 / 4 + 0.6 + 0.02
    assert faster.ratio.median == pytest.approx((left + 10) / left, rel=0.05)
    assert plain.waits_ms == pytest.approx(10.3, rel=0.3)  # the synthetic days swing by 10 %


def test_what_the_edits_make_of_the_baseline_checks_its_prediction_where_it_ran_and_cannot_be_replayed() -> None:
    """Of a candidate of two ranks there is no replay; the baseline's prediction and the measurement stand."""
    ranks = {"ranks": 2}
    arms = [
        Arm("one"),
        Arm("two", config={"launch.torchrun.nproc": 2}, facts=ranks),
        Arm("other", config={"launch.torchrun.nproc": 2, "launch.parallel": "fsdp"}, facts=ranks),
    ]
    study, runs = synthetic.build(arms, [("one", "two"), ("one", "other")], blocks=3)
    study.scenario_text["whatif"] = [{"ranks": 2}]
    for c, is_that in zip(analyse(study, runs).compared, (True, False), strict=True):
        plain, doubled = c.explained.whatifs
        for one in (plain, doubled):
            assert (one.reason, one.candidate_ms, one.ratio, one.candidate_reason) == (None, None, None, "ranks")
            assert one.baseline_ms is not None
        assert plain.measured_ms is None
        assert (doubled.measured_ms is not None) == is_that
        text = _whatif_table([(c, one) for one in c.explained.whatifs], ArmNames(["one", "two", "other"]))
        assert ("measured ms" in text) == is_that
        assert text.count("its ranks wait for one another") == (1 if is_that else 2)


def test_a_bound_says_how_long_the_device_is_idle(quick: Comparison) -> None:
    """No cause alone reaches 5 % of the step, and all together 9 %: it does run dry."""
    step_ms = quick.measured.baseline_waits.step_ms
    idle: dict[str, Any] = {"starved_ms": {"tokenize": 0.04 * step_ms, "log": 0.05 * step_ms}, "bounds": {"device": 5}}
    assert link_of(quick, **idle).text.endswith(
        "device-bound (the device is idle for 9.0 % of the step, and fetching could take 5.0 % of a step longer at "
        "almost no cost)"
    )
    unknown = link_of(quick, **idle, room_unknown=True).text
    assert unknown.endswith("so it is unknown how much longer fetching could take)")
    # Idle time before a phase begins on the device is that of the host's python, which may well be launching.
    host: dict[str, Any] = {"starved_ms": {"python": 13.0}, "bounds": {"host": 5}}
    host_bound = "host-bound (the device is idle while the host does other work than data)"
    assert link_of(quick, **host).text.endswith(host_bound)
    unknown = "for 50 % of the step the device worked or waited for launches (unknown which)"
    assert link_of(quick, **host, open_ms=0.5 * step_ms).text.endswith(f"{host_bound}, and {unknown}")


def test_a_bound_by_other_than_data_says_what_data_costs(quick: Comparison) -> None:
    step_ms = quick.measured.baseline_waits.step_ms

    def ceiling(bound: Bound, share: float, least: float | None = None) -> str:
        known = None if least is None else (least * step_ms, share * step_ms)
        return link_of(quick, bounds={bound: 5}, waited_ms=share * step_ms, waited_range_ms=known).text

    assert ceiling("host", 0.38).endswith("; ending data work alone would save 38 % of the step")
    assert ceiling("launch", 0.38, least=0.02).endswith("; ending data work alone would save 2.0 % to 38 % of the step")
    assert "alone would save" not in ceiling("launch", 0.04)


def test_a_bound_by_data_says_why_where_workers_never_rest(quick: Comparison) -> None:
    for busy, said in ((True, "workers are at work nearly all the time"), (False, "no other cause of device idle")):
        assert said in link_of(quick, bounds={"data": 5}, busy_loader=busy).text


@pytest.mark.parametrize(
    ("key", "absent"),
    [("engine", "no data-only control"), ("special_tokens_in_text", "more than the data path differs")],
)
def test_an_engine_gives_the_same_ids_and_can_be_predicted(key: str, absent: str) -> None:
    arms = [Arm("base"), Arm("c", config={f"data.tokenizer.{key}": "auto"})]
    (found,) = analysed(*arms, blocks=3).compared
    assert isinstance(found.explained.predicted, Absent)
    assert found.explained.predicted.kind == absent
