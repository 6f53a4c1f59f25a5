"""Sentences that were wrong once, each on a pipeline whose truth another simulation knows.

The list is docs/evidence/ten-cases.md.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.judge.report_types import ArmReport, StudyReport
from harness.judge.study import analyse
from harness.show.sentences import sentence
from harness.show.why import launch_bound_lines
from harness.show.words import ratio
from harness.study.records import ArmRecord, ComparisonRecord, StudyRecord
from harness.study.run_data import RunData
from tests.cuda_stream import LAUNCH_BOUND, record
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth
from tests.harness.synthetic import Arm, build, page_of

ROOT = Path(__file__).parents[3]
BLOCKS = 3
QUIET = {"spread": 0.0, "gap": 0.01, "after": 0.0, "wake": 0.0, "handover": 0.1, "receive": 0.05}
COMPUTE = {"h2d": 0.0, "forward": 12.0, "backward": 18.0, "optimizer": 2.5, "sync": 0.0, "log": 0.0}
# 10 ms of launching and 6 ms of inline data; the optimizer works for 8 ms while the host fetches.
LAUNCHING = {"h2d": 0.1, "forward": 5.0, "backward": 5.0, "optimizer": 0.2, "sync": 0.05, "log": 0.1}
INLINE = {"read": 0.0, "pack": 0.0, "tokenize": 6.0, "remainder": 0.0, "jitter": 0.002}
NO_DATA = {"read": 0.0, "tokenize": 0.0, "pack": 0.0}


def studied(runs: list[RunData]) -> StudyReport:
    """The report of "tokens" against "text" and its controls."""
    arms = [ArmRecord("text"), ArmRecord("tokens"), ArmRecord("same", "a-a", "text")]
    arms += [ArmRecord("ideal", "ideal-data", "text")]
    compared = [ComparisonRecord("text", "tokens")]
    return analyse(StudyRecord("cases", "?", "done", arms=arms, comparisons=compared, blocks=BLOCKS), runs)


def simulated(text: Truth, tokens: Truth) -> StudyReport:
    arms = {"text": text, "same": text, "tokens": tokens, "ideal": text.having(**NO_DATA)}
    return studied(
        [
            oracle.run(truth.having(seed=10 * block + place), arm=name, block=block)
            for block in range(BLOCKS)
            for place, (name, truth) in enumerate(arms.items())
        ]
    )


def baseline(report: StudyReport) -> ArmReport:
    (found,) = (arm for arm in report.arms if arm.name == "text")
    return found


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)


@pytest.fixture(scope="module")
def in_front() -> tuple[Truth, StudyReport]:
    """Two workers, 98 ms a batch, 85 of them in front and 13 behind; 35 ms of compute in a step of 49."""
    text = Truth(asynchronous=False, workers=2, host=COMPUTE, steps=80, jitter=0.0, **QUIET)
    text = text.having(gap=0.0, read=85.0, tokenize=13.0, pack=0.0)
    return text, simulated(text, text.having(read=0.0))


@pytest.mark.parametrize(
    ("sync", "backward", "truth"),
    [(True, 2.0, 1.35), pytest.param(False, 5.4, 1.13, marks=AT_NIGHT)],
    ids=["default sync", "without the sync"],
)
def test_a_fetch_behind_the_optimizer_that_delays_launches_is_a_gain_within_the_ceiling(
    sync: bool, backward: float, truth: float
) -> None:
    device = {"h2d": 0.0, "forward": 2.0, "backward": backward, "norm": 0.1, "optimizer": 8.0}
    text = Truth(workers=0, host=LAUNCHING, device=device, steps=60, sync=sync, **INLINE, **QUIET)
    without = text.having(**NO_DATA)
    report = simulated(text, without)
    (c,) = report.compared
    gain = oracle.step_ms(oracle.run(text)) / oracle.step_ms(oracle.run(without))
    assert gain == pytest.approx(truth, rel=0.01)
    for found in (c.measured.ratio, c.measured.ideal, c.measured.from_waits, c.measured.ceiling):
        assert found.median == pytest.approx(gain, rel=0.01)
    assert c.measured.verdict == "gain"
    # Without the data work a step is as much shorter as the ledger says that it waits, though no device waited so long.
    waits = c.measured.baseline_waits
    assert waits.waited_ms == pytest.approx(waits.step_ms * (1 - 1 / gain), rel=0.03)
    assert waits.waited_ms > 1.5 * waits.starved_ms["tokenize"]
    (saved,) = (one for one in baseline(report).explained.removals if one.name == "tokenize" and one.kind == "stage")
    assert saved.speedup.median == pytest.approx(gain, rel=0.01)
    said = sentence(c)
    assert f"Without any data work text would be {ratio(c.measured.ceiling.median)} as fast (ceiling, " in said
    assert "at most" not in said
    assert "not speed" not in said


@pytest.mark.slow
@pytest.mark.nightly
def test_a_stream_that_waits_for_launches_is_launch_bound_and_its_ceiling_that_of_its_host() -> None:
    """22 ms a step, 5 ms of them kernels: without its 6 ms of data work 16 ms, which is 1.374x."""
    runs = []
    for name, data_ms in (("text", 6.0), ("same", 6.0), ("tokens", 0.0), ("ideal", 0.0)):
        found = record(replace(LAUNCH_BOUND, data_ms=data_ms)).run
        for block in range(BLOCKS):
            runs.append(replace(found, record=replace(found.record, arm=name, block=block)))
    report = studied(runs)
    (c,), arm = report.compared, baseline(report)
    assert arm.totals.bound == "launch"
    assert arm.totals.device_busy_ms is None
    for estimate in (c.measured.step_time, c.measured.ceiling, c.measured.from_waits):
        assert estimate.median == pytest.approx(1.374, abs=0.005)
    assert any("launch-bound in forward" in line for line in launch_bound_lines([arm]))
    assert "never runs dry" not in page_of(report)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_stage_in_front_is_named_by_what_it_costs(in_front: tuple[Truth, StudyReport]) -> None:
    text, report = in_front
    arm = baseline(report)
    saved = {one.name: one.speedup.median for one in arm.explained.removals if one.kind == "stage"}
    truth = {
        stage: oracle.step_ms(oracle.run(text)) / oracle.step_ms(oracle.run(text.having(**{stage: 0.0})))
        for stage in ("read", "tokenize")
    }
    assert truth == pytest.approx({"read": 1.40, "tokenize": 1.15}, abs=0.01)
    assert {stage: saved[stage] for stage in truth} == pytest.approx(truth, rel=0.005)
    exposed = arm.totals.exposed_ms
    assert exposed["read"] > 3 * exposed["tokenize"] > 0
    assert sum(exposed.values()) == pytest.approx(14, abs=0.1)  # the wait of a step
    assert report.compared[0].measured.ratio.median == pytest.approx(truth["read"], rel=0.005)


@pytest.mark.slow
@pytest.mark.nightly
def test_what_ran_while_the_step_waited_for_another_worker_is_not_called_hidden(
    in_front: tuple[Truth, StudyReport],
) -> None:
    """Both workers build all the time: of 98 ms a step 70 beside compute, 14 in the other's wait, 14 in their own."""
    totals = baseline(in_front[1]).totals
    work, hidden, parallel, during = (
        sum(found.values()) for found in (totals.work_ms, totals.hidden_ms, totals.parallel_ms, totals.during_wait_ms)
    )
    assert work == pytest.approx(98, abs=0.2)
    assert parallel == pytest.approx(14, abs=0.2)
    assert during == pytest.approx(14, abs=0.2)
    assert hidden <= 2 * 35


def test_inline_data_on_a_cpu_has_a_ceiling_that_holds_what_ideal_data_shows() -> None:
    """A wait also cools caches for the compute after it: 29.7 ms of compute are 28 without the 1 ms of data work."""
    text = Arm("text", tokenize=1.0)
    warm = {phase: 0.943 * cost for phase, cost in text.compute.items()}
    tokens = Arm("tokens", tokenize=0.0, read=0.0, pack=0.0, compute=warm, declared={"data.path": "tokens-padded"})
    ideal = text.variant("ideal-data", tokenize=0.0, read=0.0, pack=0.0, compute=warm)
    noise = {"day": 0.01, "block": 0.002, "repetition": 0.002, "step": 0.01}
    arms = [text, tokens, *text.controls("a-a"), ideal]
    (c,) = analyse(*build(arms, [("text", "tokens")], blocks=5, noise=noise)).compared
    m = c.measured
    assert m.from_waits.median == pytest.approx(31.0 / 29.7, abs=0.005)  # what was called the most that could be gained
    assert m.ideal.ci_low is not None
    assert m.ideal.ci_low > (m.from_waits.ci_high or 0)
    assert m.ceiling.ci_high is not None
    assert m.step_time is not None
    # The ceiling's interval reaches as high as the median of each of the others.
    assert max(one.median for one in (m.ideal, m.from_waits, m.step_time)) <= m.ceiling.ci_high * 1.001
    assert "at most" not in sentence(c)
    assert "Estimates disagree: text with ideal data is" in sentence(c)


@pytest.mark.parametrize(
    "path",
    [
        *sorted((ROOT / "tests/fixtures/studies").glob("*/summary.json")),
        ROOT / "results/reference/quickstart/summary.json",
    ],
    ids=lambda path: path.parent.name,
)
def test_no_shipped_gain_lies_above_the_ceiling_of_the_present_analysis(path: Path) -> None:
    """Every shipped study is of the present analysis, which ranks what to try next and never says "at most" here."""
    found = json.loads(path.read_text())
    assert "advice" in found
    for one in found["comparisons"]:
        top = one["ceiling_ratio"]["ci_high"]
        assert "at most" not in one["sentence"]
        if "which changes more than the data path" in one["reasons"].get("predicted", ""):
            continue  # the ceiling is of data work, as the first screen says
        for figure in ("ideal_ratio", "step_time_ratio"):
            assert one[figure] is None or one[figure]["median"] <= top, (one["candidate"], figure)
