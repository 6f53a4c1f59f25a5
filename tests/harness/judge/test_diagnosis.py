"""What a program that nobody here wrote is bound by: each kind of diagnosis, on steps whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.explain.policy import CHEAP_ROW_US_MAX
from harness.explain.unusual_steps import EndedCost
from harness.judge.diagnosis import _least_share, diagnose
from harness.judge.policy import (
    COMPUTE_SHARE_MIN,
    DIAGNOSED_SHARE_MIN,
    ENDED_COST_MIN,
    EXCHANGE_SHARE_MIN,
    FINDING_SHARE_MIN,
    HANDOVER_SHARE_MIN,
    NOISY_SHARE_MIN,
)
from harness.judge.report_types import ArmReport, Diagnosis, DiagnosisKind, StudyReport
from harness.judge.study import analyse
from harness.show.first_screen import first_screen
from harness.show.text.findings import REMEDIES, TITLES, diagnosis_text, finding_text
from tests.harness.explain.test_wall import ATTACHED, COMPILED, EXACT, named, rows, rows_of, spent
from tests.harness.synthetic import Arm, build

GROWTH = {"first_ms": 60.0, "last_ms": 150.0, "part_share": 1.0}
PADDED = {"share": 0.8, "column_share": 0.5}
CALLED_MODULE = "torch.nn.modules.module.Module._wrapped_call_impl"
RANKS = {"ranks": 2, "waiting_share": 0.001}
NO_DATA = {"read": 0.0, "tokenize": 0.0, "pack": 0.0}


def arm_of(compute: dict[str, float], *causes: dict[str, Any], facts: dict[str, Any] | None = None, **arm: Any) -> Arm:
    """A program of a step of 100 ms; what no phase has is in forward."""
    spent_ms = sum(compute.values()) + sum(arm.get(name, 0.0) for name in NO_DATA) + 0.02
    known = {**ATTACHED, **({"causes": rows(*causes)} if causes else {}), **(facts or {})}
    compute = {"forward": 100.0 - spent_ms, **compute}
    return Arm("script", **{**NO_DATA, **arm}, compute=compute, facts=known)


def report_of(arm: Arm) -> StudyReport:
    """Replayed only if something of it can be: data work, or time off a core."""
    spans = bool(arm.off_core) or any(vars(arm)[name] for name in (*NO_DATA, "transfer"))
    return analyse(*build([arm], blocks=3, noise=EXACT, spans=spans))


def diagnosed(arm: Arm) -> ArmReport:
    (found,) = report_of(arm).arms
    return found


def test_workers_without_items_are_given_some() -> None:
    assert diagnose(replace(diagnosed(CASES["data"][0]), idle_workers=3, gave_no_items=True))[0].remedy == "more shards"


def first(arm: Arm) -> Diagnosis:
    return diagnosed(arm).diagnoses[0]


CASES: dict[str, tuple[Arm, str, str, float, float, str]] = {
    "data": (arm_of({}, tokenize=30.0, read=10.0), "input-bound", "tokenize", 0.4, 1 / 0.6, "advice"),
    "sampler": (arm_of({}, read=40.0, facts={"sampling_share": 0.3}), "input-bound", "sampler", 0.4, 1 / 0.6,
                "faster sampler"),
    "rows one by one": (arm_of({}, rows_of(0.9 * CHEAP_ROW_US_MAX), read=40.0), "input-bound", "read", 0.4, 1 / 0.6,
                        "whole batches"),
    "objects": (arm_of({"forward": 60.0}, transfer=40.0, workers=1, facts={"workers": 1}), "input-bound", "transfer",
                0.4, 1 / 0.6, "advice"),
    "restarts": (arm_of({"forward": 100.0}, read=130.0, workers=1, facts={"workers": 1, "restarting_share": 0.2}),
                 "input-bound", "loader restart", 0.23, 1.3, "persistent workers"),
    "tokenizer in the loop": (arm_of({"other": 30.0}, facts={"tokenizing_share": 0.3}), "input-bound",
                              "tokenize in the loop", 0.3, 1 / 0.7, "tokenize before"),
    "own code": (arm_of({"other": 40.0}, named("", "a.py:3", 40.0)), "own code", "a.py:3", 0.4, 1 / 0.6, "less often"),
    "a hook on gradients": (arm_of({"backward": 60.0}, named("gradient hooks", "a.py:3", 40.0)), "own code", "a.py:3",
                            0.4, 1 / 0.6, "less often"),
    "another thread": (arm_of({"other": 40.0}, named("", "a.py:3", 40.0, called="queue.get")), "own code", "a.py:3",
                       0.4, 1 / 0.6, "other thread"),
    "a lock": (arm_of({"other": 40.0}, named("", "a.py:3", 40.0, called="threading.Lock")), "own code", "a.py:3", 0.4,
               1 / 0.6, "shorter lock"),
    "a save by its line": (arm_of({"other": 40.0}, named("", "a.py:3", 40.0, code="torch.save(model, path)")),
                           "checkpoint-bound", "a.py:3", 0.4, 1 / 0.6, "save less often"),
    "a save by its function": (arm_of({"other": 40.0}, named("", "a.py:3", 40.0, code="f.write(b)",
                                                             function="write_checkpoint")),
                               "checkpoint-bound", "a.py:3", 0.4, 1 / 0.6, "save less often"),
    "no save by its comment": (arm_of({"other": 40.0}, named("", "a.py:3", 40.0, code="x = 1  # save")), "own code",
                               "a.py:3", 0.4, 1 / 0.6, "less often"),
    "a tensor that is printed": (arm_of({"other": 40.0}, named("", "a.py:3", 40.0,
                                                               called="torch._tensor.Tensor.__repr__")),
                                 "own code", "a.py:3", 0.4, 1 / 0.6, "less often"),
    "rows of a tensor one by one": (arm_of({"other": 40.0}, named("", "a.py:3", 40.0,
                                                                  called="torch._tensor.Tensor.__iter__")),
                                    "own code", "a.py:3", 0.4, 1 / 0.6, "less often"),
    "a loss outside of the model": (arm_of({"other": 40.0}, named("", "a.py:3", 40.0,
                                                                  called="torch.nn.functional.cross_entropy")),
                                    "compute-bound", "forward", 1.0, 1.0, "model"),
    "collections": (arm_of({"other": 40.0}, spent("gc", 40.0)), "garbage collection", "garbage collection", 0.4,
                    1 / 0.6, "freeze"),
    "evaluations": (arm_of({}, facts={"evaluating_steps": 2, "evaluating_share": 0.5}), "evaluation-bound",
                    "evaluation", 0.417, 1 / 0.583, "evaluate less often"),
    "graphs": (arm_of({}, facts={"causes": ({**COMPILED, "ms": 12 * 20.0 + 40.0},)}), "recompiling", "compilation",
               0.2, 1 / 0.8, "fewer shapes"),
    "cores": (arm_of({}, facts={"waiting_share": 0.3, "threads": 4, "cores": 2}, off_core={"forward": 40.0}),
              "cores too few", "waiting for a core", 0.3, 1 / 0.7, "fewer threads"),
    "cores for workers": (arm_of({}, facts={"waiting_share": 0.3, "workers": 3, "cores": 2},
                                 off_core={"forward": 40.0}),
                          "cores too few", "waiting for a core", 0.3, 1 / 0.7, "free cores"),
    "ranks": (arm_of({"backward": 60.0}, facts=RANKS, off_core={"backward": 40.0}), "synchronization-bound",
              "waiting for ranks", 0.4, 1 / 0.6, "other ranks"),
    "gradients of each micro-batch": (
        arm_of({"backward": 60.0}, {"kind": "setting", "place": "gradient synchronization", "figures": {"passes": 8.0}},
               facts=RANKS, off_core={"backward": 40.0}),
        "synchronization-bound", "waiting for ranks", 0.4, 1 / 0.6, "no sync"),
    "a thread that holds the lock": (
        arm_of({"backward": 40.0}, spent("lock", 30.0, place="a.py:3"), facts={"waiting_share": 0.001},
               off_core={"forward": 10.0, "backward": 25.0}),
        "interpreter lock", "a.py:3", 0.3, 1 / 0.7, "other process"),
    "a thread that lets go of the lock": (
        arm_of({"backward": 60.0}, spent("lock", 90.0, place="a.py:3"), facts={"waiting_share": 0.001}),
        "compute-bound", "backward", 1.0, 1.0, "model"),
    "a line of the evaluations": (
        arm_of({}, spent("evaluation", 30.0, place="a.py:3"), facts={"evaluating_steps": 2, "evaluating_share": 0.5}),
        "evaluation-bound", "a.py:3", 0.417, 1 / 0.583, "evaluate less often"),
    "graphs of the evaluations": (
        arm_of({}, {"kind": "setting", "place": "evaluation gradients"},
               facts={"evaluating_steps": 2, "evaluating_share": 0.5}),
        "evaluation-bound", "evaluation", 0.417, 1 / 0.583, "no gradients"),
    "an evaluation in the loop itself": (
        arm_of({"other": 2.0}, named("", "a.py:3", 80.0, called=CALLED_MODULE), rare={"other": 80.0 * 12}),
        "evaluation-bound", "a.py:3", 80 / 180, 1.8, "evaluate less often"),
    "a model that each step calls besides": (
        arm_of({"other": 80.0}, named("", "a.py:3", 80.0, called=CALLED_MODULE)), "compute-bound", "a.py:3", 1.0, 1.0,
        "model"),
    "a line that is its growth": (
        arm_of({"other": 50.0}, named("", "a.py:3", 48.0), {"kind": "growing", "ms": 45.0, "figures": GROWTH}),
        "growing", "a.py:3", 0.45, 1 / 0.55, "find the growth"),
    "steps that grow": (arm_of({"backward": 60.0}, {"kind": "growing", "phase": "backward", "ms": 45.0,
                                                    "figures": GROWTH}),
                        "growing", "backward", 0.45, 1 / 0.55, "find the growth"),
    "hooks that pile up": (arm_of({}, {"kind": "growing", "phase": "forward", "ms": 45.0, "place": "a.py:3",
                                       "called": "forward", "figures": GROWTH}),
                           "growing", "a.py:3", 0.45, 1 / 0.55, "find the growth"),
    "a line that grows": (arm_of({"other": 50.0}, named("", "a.py:3", 44.0), {"kind": "growing", "ms": 45.0,
                                                                              "figures": GROWTH}),
                          "growing", "a.py:3", 0.45, 1 / 0.55, "find the growth"),
    "padding": (arm_of({}, {"kind": "padding", "ms": 70.0, "figures": PADDED}), "padding",
                "forward and backward", 0.7, 1 / 0.3, "pad less"),
    "padding of rows of unlike length": (
        arm_of({}, {"kind": "padding", "ms": 70.0, "figures": {"share": 0.7, "column_share": 0.0}}), "padding",
        "forward and backward", 0.7, 1 / 0.3, "batch alike"),
    "nothing but the model": (arm_of({"backward": 60.0}, read=3.0), "compute-bound", "backward", 0.97, 1 / 0.97,
                              "model"),
    "long steps of no known cause": (arm_of({"forward": 40.0, "log": 59.98}, rare={"log": 500.0}), "unknown", "log",
                                     500 / 12 / (100 + 500 / 12), (100 + 500 / 12) / 100, "profile"),
    "outside of all phases": (arm_of({"other": 60.0}, spent("gc", 0.1)), "unknown", "other", 0.6, 1 / 0.4, "profile"),
    "lines that were not sampled": (arm_of({"other": 60.0}), "unknown", "other", 0.6, 1 / 0.4, "sample alone"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_told_with_its_cost_its_saving_a_card_and_one_bar_of_the_whole_step(name: str) -> None:
    arm, kind, part, share, saving, remedy = CASES[name]
    report = report_of(arm)
    found = report.arms[0].diagnoses[0]
    assert (found.kind, found.name, found.remedy) == (kind, part, remedy)
    assert found.share == pytest.approx(share, rel=0.03, abs=0.003)
    assert found.saving.median == pytest.approx(saving, rel=0.05)
    card = first_screen(report).card
    assert card.kind == kind
    assert card.diagnosis.isupper() or kind == "input-bound"
    assert REMEDIES[remedy] in card.cost  # type: ignore[index]
    assert sum(part.length for part in card.bar) == pytest.approx(1.0)


def test_each_kind_has_a_title() -> None:
    assert set(TITLES) == set(DiagnosisKind.__args__)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_without_cores_also_wait_for_each_other(ranks: int) -> None:
    """ "Up to 1.517x" was printed of two ranks that were 3.44x as fast with cores of their own."""
    facts = {"ranks": ranks, "waiting_share": 0.3, "threads": 4, "cores": 2}
    arm = diagnosed(arm_of({}, facts=facts, off_core={"forward": 40.0}))
    found = next(one for one in arm.diagnoses if one.kind == "cores too few")
    assert ("up to" in finding_text(found, 100.0)) == (ranks == 1)
    assert (found.saving.ci_high is None) == (ranks > 1)
    assert ("at least" in finding_text(found, 100.0)) == (ranks > 1)


def test_the_place_where_another_thread_holds_the_lock_is_named() -> None:
    holders = [spent("lock holder", ms, place=place) for place, ms in (("b.py:7", 30.0), ("c.py:1", 5.0))]
    found = first(arm_of({"other": 40.0}, named("", "a.py:3", 40.0, called="threading.Lock"), *holders))
    assert found.remedy == "shorter lock"
    assert found.holder.place == "b.py:7"
    assert "b.py:7" in diagnosis_text(found, 100.0)


MODEL_LINE = named("forward", "a.py:9", 70.0, code="text.split()")


def kinds(arm: Arm) -> list[str]:
    return [one.kind for one in diagnosed(arm).diagnoses]


@pytest.mark.parametrize("above", [0.01, -0.01])
def test_a_part_is_a_diagnosis_or_a_finding_from_its_threshold_on(above: float) -> None:
    def own(share: float) -> Arm:
        ms = 100.0 * share * (1 + 2 * above)
        return arm_of({"other": ms}, named("", "a.py:3", ms))

    hand_over = 100 * (HANDOVER_SHARE_MIN + above)
    sent = diagnosed(arm_of({"forward": 100.0 - hand_over}, transfer=hand_over, workers=1, facts={"workers": 1}))
    found = [one for one in sent.diagnoses if one.kind == "input-bound"]
    assert bool(found) == (above > 0)
    for one in found:  # a small hand-over hides no other data work
        assert _least_share(one) == HANDOVER_SHARE_MIN
        assert _least_share(replace(one, share_of_part=0.4)) == FINDING_SHARE_MIN
    unknown = arm_of({"other": 100 * (DIAGNOSED_SHARE_MIN + above)}, spent("gc", 0.1))
    assert ("unknown" in kinds(unknown)) == (above > 0)
    assert (first(own(DIAGNOSED_SHARE_MIN)).kind == "own code") == (above > 0)
    assert kinds(own(FINDING_SHARE_MIN)) == ["compute-bound", *["own code"] * (above > 0)]
    rest = arm_of({"other": 100.0 * (1 - COMPUTE_SHARE_MIN) - 100 * above})
    assert (first(rest).kind == "compute-bound") == (above > 0)
    line = first(arm_of({}, MODEL_LINE))  # the line that takes most of the model
    assert (line.kind, line.part.name, line.part.code) == ("compute-bound", "a.py:9", "text.split()")


GROWN = {"kind": "growing", "ms": 45.0, "figures": GROWTH}
OTHERS = {"facts": {"waiting_share": 0.6, "threads": 1, "cores": 2}, "off_core": {"forward": 70.0}}


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        # A fifth of the step waits for a core, so that verdicts and predictions are barred; own code takes most.
        (arm_of({"other": 60.0}, named("", "a.py:3", 56.0), facts={"waiting_share": 0.2}, off_core={"forward": 30.0}),
         ["own code"]),
        # Waits that others cause take most of the step. The program has threads enough for its cores.
        (arm_of({"other": 20.0}, named("", "a.py:3", 20.0), **OTHERS), ["own code"]),
        (arm_of({}, **OTHERS), ["compute-bound"]),
        # The most expensive is first.
        (arm_of({"other": 30.0}, named("", "a.py:3", 12.0), spent("gc", 18.0), tokenize=15.0),
         ["garbage collection", "input-bound", "own code"]),
        # A line is no cause beside its growth: 3.52 ms of own code and 2.81 ms of growth were one line.
        (arm_of({"other": 96.0}, named("", "a.py:3", 48.0), GROWN), ["growing"]),
        (arm_of({"other": 96.0}, named("", "a.py:3", 95.0), GROWN), ["own code", "growing"]),
    ],
)  # fmt: skip
def test_what_is_found_beside_what(arm: Arm, expected: list[str]) -> None:
    assert [one for one in kinds(arm) if one != "unknown"] == expected


@pytest.mark.parametrize(
    ("cause", "ms"),
    [
        # The padding costs 10 % of each phase, so 4 of the 40 ms that the program had a core.
        ({"kind": "padding", "ms": 10.0, "figures": PADDED}, 4.0),
        # Steps are compared without their waits for a core: what they grow by has none.
        ({"kind": "growing", "phase": "forward", "ms": 20.0, "figures": GROWTH}, 20.0),
    ],
)
def test_a_cost_where_others_have_the_cores(cause: dict[str, Any], ms: float) -> None:
    (found,) = (one for one in diagnosed(arm_of({}, cause, **OTHERS)).diagnoses if one.kind == cause["kind"])
    assert found.ms.median == pytest.approx(ms, rel=0.03)


THREADS = [spent("lock", 90.0, place=place) for place in ("a.py:3", "b.py:4")]
IDLE_THREADS = [{**one, "spent_ms": one["spent_ms"] * 4 / 9} for one in THREADS]


@pytest.mark.parametrize(
    ("causes", "workers", "remedy"),
    [
        (THREADS, 0, "fewer processes"),  # threads of the program that keep cores busy
        (IDLE_THREADS, 0, None),
        ([{"kind": "busy", "figures": {"cores": 3.0}}], 0, "fewer processes"),  # child processes that ask for cores
        ([{"kind": "busy", "figures": {"cores": 0.4}}], 0, None),
        ([{"kind": "busy", "figures": {"cores": 3.0}}], 3, "free cores"),  # what its loader workers ask for
    ],
)
def test_what_the_program_does_beside_its_steps_counts_as_its_own(
    causes: list[dict[str, Any]], workers: int, remedy: str | None
) -> None:
    facts = {"waiting_share": 0.3, "threads": 1, "cores": 2, "workers": workers}
    found = diagnosed(arm_of({}, *causes, facts=facts, off_core={"forward": 30.0}))
    assert [one.remedy for one in found.diagnoses if one.kind == "cores too few"] == [remedy] * (remedy is not None)
    assert found.crowded == (remedy is not None)


def ranks_of(*computed: tuple[dict[str, float], dict[str, float], float]) -> tuple[ArmReport, ...]:
    """Two ranks with exact steps: each with phases, time off a core by phase, and milliseconds of reading."""
    arms = [
        Arm(f"rank-{number}", read=read_ms, tokenize=0.0, pack=0.0, compute={"forward": 9.0, **compute},
            off_core=off_core, facts={**ATTACHED, **RANKS})
        for number, (compute, off_core, read_ms) in enumerate(computed)
    ]  # fmt: skip
    return analyse(*build(arms, [], blocks=3, noise=EXACT)).arms


def test_waits_for_the_data_of_another_rank_are_a_cost_of_the_data() -> None:
    """Rank 0 waits for 20 ms until rank 1 has read: without data work both steps are 20 ms shorter."""
    waiting, reading = ranks_of(({"backward": 30.0}, {"backward": 20.0}, 1.0), ({"backward": 10.0}, {}, 21.0))
    for arm in (waiting, reading):
        found = arm.diagnoses[0]
        assert (found.kind, found.at_most) == ("input-bound", False)
        assert found.ms.median == pytest.approx(21.0, rel=0.02)
        assert found.saving.median == pytest.approx(40.0 / 19.0, rel=0.02)
        assert "synchronization-bound" not in [one.kind for one in arm.diagnoses]


def test_the_bound_of_own_code_includes_waits_for_ranks_with_the_same_code() -> None:
    arm = arm_of({"other": 20.0, "backward": 60.0}, named("", "a.py:3", 20.0), facts=RANKS, off_core={"backward": 30.0})
    (found,) = (one for one in diagnosed(arm).diagnoses if one.kind == "own code")
    assert found.at_most
    assert found.saving.median == pytest.approx(1 / 0.5, rel=0.02)


@pytest.mark.parametrize(
    ("other_ms", "remedy"),
    [(20.0 * EXCHANGE_SHARE_MIN + 0.5, "less exchange"), (20.0 * EXCHANGE_SHARE_MIN - 0.5, "other ranks")],
)
def test_an_exchange_that_takes_all_ranks_as_long_has_no_late_rank(other_ms: float, remedy: str) -> None:
    backward = {"backward": 30.0}
    blocked, _ = ranks_of((backward, {"backward": 20.0}, 0.0), (backward, {"backward": other_ms}, 0.0))
    (found,) = (one for one in blocked.diagnoses if one.kind == "synchronization-bound")
    assert found.remedy == remedy


def test_no_finding_is_below_the_noise() -> None:
    arm = arm_of({}, tokenize=40.0, facts={"evaluating_steps": 1, "evaluating_share": 0.1})
    study, runs = build([arm], blocks=3, noise=EXACT)
    for run in runs[1:]:  # a single block has evaluations
        object.__setattr__(run.record.facts, "evaluating_share", 0.0)
        object.__setattr__(run.record.facts, "evaluating_steps", 0)
    (report,) = analyse(study, runs).arms
    assert [one.kind for one in report.diagnoses] == ["input-bound"]


def test_a_saving_beside_loader_workers_that_steps_wait_for_is_a_bound() -> None:
    arm = arm_of({"other": 40.0}, named("", "a.py:3", 40.0), read=110.0, workers=1, facts={"workers": 1})
    by_kind = {one.kind: one for one in diagnosed(arm).diagnoses}
    assert by_kind["own code"].at_most
    assert not first(CASES["own code"][0]).at_most
    # Two workers keep up with this step. They would not with a shorter one.
    keeping = arm_of({"other": 40.0}, named("", "a.py:3", 40.0), read=110.0, workers=2, facts={"workers": 2})
    assert first(keeping).at_most
    # 7.31x was said of a sleep beside a future that was waited for in the next line.
    waits = named("", "a.py:4", 10.0, called="concurrent.futures")
    assert first(arm_of({"other": 60.0}, named("", "a.py:3", 40.0), waits)).at_most


def test_growth_saves_at_least_what_it_took_since_the_first_measured_steps() -> None:
    """1.900x (1.778x to 2.04x) was said where steps without any hook were 4 times as fast."""
    cause = {"kind": "growing", "phase": "backward", "ms": 45.0, "low_ms": 40.0, "high_ms": 50.0, "figures": GROWTH}
    saving = first(arm_of({}, cause)).saving
    assert saving.ci_low == pytest.approx(1 / 0.6, rel=0.05)
    assert saving.ci_high is None


def test_work_beside_workers_saves_no_more_than_they_allow() -> None:
    """A worker needed 40 ms a batch, so that steps without the 36 ms of own code would have been as long."""
    arm = diagnosed(arm_of({"other": 60.0}, named("", "a.py:3", 60.0)))
    totals = replace(arm.totals, work_ms={"read": 75.0, "pack": 15.0})
    found = diagnose(replace(arm, workers=1, totals=totals))[0]
    assert found.saving.median == pytest.approx(100 / 90, rel=0.02)
    assert found.at_most
    assert found.remedy == "less often"
    slower = replace(totals, work_ms={"read": 99.0})
    assert diagnose(replace(arm, workers=1, totals=slower))[0].remedy == "loading first"


@pytest.mark.parametrize("waits", [0.0, 0.6])
def test_a_cost_that_may_be_none_is_told_only_where_it_is_large(waits: float) -> None:
    """Graphs compiled in some blocks took 95 % of a step: from 0 to 259 ms. 0.16 ms (0.00 to 0.58) were a headline.
    Waits for a core that other processes cause make no cost small."""
    facts = {"waiting_share": waits, "threads": 1, "cores": 2}
    off_core = {"forward": 70.0} if waits else {}

    def costing(share: float, looks: int = 0) -> bool:
        arm = diagnosed(arm_of({"other": 20.0}, named("", "a.py:3", 20.0), facts=facts, off_core=off_core))
        ms = share * (arm.wall.step_ms.median - arm.wall.total("core"))
        wide = [
            replace(part, ms=replace(part.ms, median=ms, ci_low=0.0, ci_high=200.0)) if part.kind == "code" else part
            for part in arm.wall.parts
        ]
        causes = tuple(replace(cause, looks=looks) for cause in arm.causes)
        found = diagnose(replace(arm, causes=causes, wall=replace(arm.wall, parts=tuple(wide))))
        return any(one.kind == "own code" for one in found)

    assert costing(NOISY_SHARE_MIN + 0.05)
    assert not costing(NOISY_SHARE_MIN - 0.05)
    # The samples of all blocks together show a line that no single block does.
    assert costing(NOISY_SHARE_MIN - 0.05, looks=100)
    assert not costing(NOISY_SHARE_MIN - 0.05, looks=5)


@pytest.mark.parametrize("cause", [named("", "a.py:3", 90.0), spent("gc", 90.0)])
def test_a_cause_that_is_removed_waits_for_no_core_any_more(cause: dict[str, Any]) -> None:
    """2.02x was said of collections of which a step was 29 times as fast without: half of it waited for a core."""
    arm = arm_of({"other": 90.0}, cause, facts={"waiting_share": 0.5, "running_share": 0.5}, off_core={"forward": 5.0})
    report = diagnosed(arm)
    (found, *_), wall = report.diagnoses, report.wall
    assert wall.total("core") == pytest.approx(50.0, rel=0.01)
    assert found.ms.median == pytest.approx(45.0, rel=0.01)
    assert found.share == pytest.approx(0.9, rel=0.01)
    assert found.saving.median == pytest.approx(10.0, rel=0.1)
    (row,) = report.causes  # what the page tells of it
    assert row.step_ms == pytest.approx(found.ms.median)
    assert row.spent_share == pytest.approx(found.share)


def test_growth_of_several_lines_names_the_largest_with_its_own_time() -> None:
    """One line had 7.4 ms, another one 4.1 ms, and 10.7 ms of both had grown."""
    lines = [named("", "a.py:3", 30.0), named("", "a.py:4", 18.0)]
    arm = arm_of({"other": 50.0}, *lines, {"kind": "growing", "ms": 44.0, "figures": GROWTH})
    (found,) = (one for one in diagnosed(arm).diagnoses if one.kind in ("growing", "own code"))
    assert (found.kind, found.name) == ("growing", "a.py:3")
    assert found.part.ms.median == pytest.approx(30.0, rel=0.01)
    assert found.share_of_part == pytest.approx(30 / 44, rel=0.01)


def test_a_phase_that_takes_less_than_the_growth_is_not_its_place() -> None:
    """16.2 ms of growth "in backward", which took 4.47 ms: it waited for a core the longer, and a line had grown."""
    cause = {"kind": "growing", "phase": "backward", "ms": 30.0, "figures": GROWTH}
    report = diagnosed(arm_of({"other": 50.0, "backward": 10.0}, named("", "a.py:3", 45.0), cause))
    first, *others = report.diagnoses
    assert (first.kind, first.name) == ("growing", "a.py:3")
    assert not [one for one in others if one.kind == "own code"]
    assert [one.phase for one in report.causes if one.kind == "growing"] == [""]


@pytest.mark.parametrize(("part", "ends"), [(1.01, True), (0.99, False)])
def test_a_cost_that_ended_has_its_steps_and_no_saving(part: float, *, ends: bool) -> None:
    """2.99x was promised where the first 80 of 300 steps had been slow."""
    arm = diagnosed(arm_of({"other": 40.0}, named("", "a.py:3", 40.0)))
    ended = EndedCost(1, 80, 300, from_start=True, ms=40.0 * ENDED_COST_MIN * part)
    found = diagnose(replace(arm, ended={"other": ended}))[0]
    assert found.kind == "own code"
    assert (found.saving is None) == ends
    text = diagnosis_text(found, 100.0)
    assert ("Only up to step 80 of 300, none since." in text) == ends
    assert ("as fast" in text) != ends
    assert diagnose(replace(arm, ended={"fetch": ended}))[0].saving is not None
    other = replace(found, ended=replace(ended, first=40, from_start=False))
    assert "only in steps 40 to 80 of 300" in finding_text(other, 100.0)
