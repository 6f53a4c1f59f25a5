"""The parts of a step, against the truth: they sum to what a clock shows, on a machine in use as well."""

from __future__ import annotations

from typing import Any

import pytest

from harness.explain.policy import NAMED_LINE_SHARE_MIN, NAMED_LINES_MAX, STAGE_LINE_SHARE_MIN
from harness.explain.wall import START_UP, WAITING, StepPart
from harness.judge.report_types import ArmReport
from harness.judge.study import analyse
from tests.harness.synthetic import NOISE, Arm, build

EXACT = dict.fromkeys(NOISE, 0.0)
ATTACHED = {"attached": "fetch: DataLoader without workers; backward"}
STEP_MS = 4.0 + 9.0 + 25.0 + 0.02  # 8 ms of these are waits for a core


def arm_of(waited_ms: float, off_core: dict[str, float], noise: dict[str, float] = EXACT, **facts: Any) -> ArmReport:
    known = {**ATTACHED, "waiting_share": waited_ms / STEP_MS, **facts}
    arm = Arm("script", read=4.0, tokenize=0.0, pack=0.0, transfer=0.0, workers=0,
              compute={"forward": 9.0, "backward": 25.0}, off_core=off_core, facts=known)  # fmt: skip
    (found,) = analyse(*build([arm], blocks=3, noise=noise)).arms
    return found


def by_name(arm: ArmReport) -> dict[str, StepPart]:
    return {one.name: one for one in arm.parts}


def test_what_had_no_core_is_a_part_of_its_own_and_the_others_are_without() -> None:
    found = arm_of(8.0, {"backward": 8.0})
    parts = by_name(found)
    assert {name: part.ms.median for name, part in parts.items()} == {
        "backward": pytest.approx(17.0, abs=0.1),
        "forward": pytest.approx(9.0, abs=0.1),
        WAITING: pytest.approx(8.0, abs=0.1),
        "read": pytest.approx(4.0, abs=0.1),
        "other": pytest.approx(0.02, abs=0.02),
    }
    assert sum(part.ms.median for part in found.parts) == pytest.approx(STEP_MS, rel=1e-3)
    assert sum(part.share for part in found.parts) == pytest.approx(1.0)
    # The finding stands where verdict and prediction are barred.
    assert [(one.kind, one.bars) for one in found.doubts] == [("no core", "all")]
    assert found.doubts[0].share == pytest.approx(8.0 / STEP_MS, abs=1e-3)
    assert found.explained.ideal_predicted is None


def test_a_replay_that_misses_the_run_leaves_the_stage_that_ran_during_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay that was off by more than its tolerance turned "read" into "fetch", though each wait was a read."""
    monkeypatch.setattr("harness.judge.study._splits", lambda *_: False)
    arm = Arm("script", read=60.0, tokenize=0.0, pack=0.0, workers=1, compute={"backward": 25.0}, facts=ATTACHED)
    found = analysed(arm)
    parts = {(part.kind, part.name): part.ms.median for part in found.parts}
    assert parts["data", "read"] == pytest.approx(35.0, rel=0.1)
    assert parts.get(("data", "fetch"), 0.0) < 3.0


def test_a_wait_for_data_is_no_wait_for_a_core_and_the_interval_says_that_it_might_be() -> None:
    """The fetch runs for 0.2 of its 4 ms; of 8 ms that had no core it can have had a third, by the time off a core."""
    parts = by_name(arm_of(8.0, {"backward": 9.0, "fetch": 3.8}))
    fetch, backward = parts["read"].ms, parts["backward"].ms
    assert fetch.median == pytest.approx(4.0, abs=0.15)
    assert fetch.ci_low == pytest.approx(4.0 - 8.0 * 3.8 / 12.8, abs=0.1)
    assert backward.ci_low <= 17.2 <= backward.ci_high


def test_a_collection_waits_for_a_core_as_the_step_does() -> None:
    found = arm_of(STEP_MS / 4, {"backward": 20.0}, causes=rows(spent("gc", 8.0)))
    assert by_name(found)["garbage collection"].ms.median == pytest.approx(6.0, rel=0.02)


def test_an_evaluation_waits_for_a_core_as_the_steps_do() -> None:
    """A quarter of the steps waits for a core. It is possible that evaluations do not wait at all."""
    found = arm_of(STEP_MS / 4, {"backward": 20.0}, evaluating_share=0.5, evaluating_steps=1)
    parts = by_name(found)
    evaluation, step = parts["evaluation"].ms, sum(part.ms.median for part in found.parts)
    evaluated_ms = step - STEP_MS
    assert evaluation.median == pytest.approx(0.75 * evaluated_ms, rel=0.02)
    assert evaluation.ci_high >= 0.99 * evaluated_ms
    assert parts[WAITING].ms.median == pytest.approx(0.25 * step, rel=0.02)


@pytest.mark.parametrize("waited", [True, False])
def test_a_quiet_machine_has_the_same_parts(waited: bool) -> None:
    facts = {"waiting_share": 0.05 if waited else None}
    assert (WAITING in by_name(arm_of(8.0, {"backward": 8.0}, **facts))) == waited


def spent(kind: str, ms: float, of: int = 12, **more: Any) -> dict[str, Any]:
    """A row of a cause that took ``ms`` a step."""
    return {"kind": kind, "spent_ms": ms * of, "times": 1.0, **more}


def rows(*causes: dict[str, Any], of: int = 12) -> tuple[dict[str, Any], ...]:
    return ({"kind": "sampled", "of": of, "wall_ms": 100.0 * of, "looks": 1000}, *causes)


def named(phase: str, place: str, ms: float, **more: Any) -> dict[str, Any]:
    return spent("code", ms, phase=phase, place=place, **more)


def rows_of(row_us: float) -> dict[str, Any]:
    """A dataset that is read row by row, ``row_us`` of CPU time each."""
    return {"kind": "maker", "phase": "read", "place": "a.py:9", "function": "R.get", "figures": {"row_us": row_us}}


COMPILED = {"kind": "compiled", "times": 1.0, "steps": 1, "of": 12, "ms": 12 * 5.0 + 40.0, "rest_ms": 11 * 40.0}
CASES: dict[str, tuple[Arm, dict[tuple[str, str], float]]] = {
    "stages of the data": (
        Arm("script", read=4.0, tokenize=2.0, pack=1.0, facts={"sampling_share": 0.01}),
        {("data", "read"): 3.63, ("data", "tokenize"): 2.0, ("data", "pack"): 1.0, ("data", "sampler"): 0.37},
    ),
    "a batch that is asked for outside of all phases": (
        Arm("script", read=4.0, compute={"forward": 9.0, "other": 20.0}, facts={"causes": rows(
            named("", "a.py:3", 5.0, called="torch.utils.data.dataloader._BaseDataLoaderIter.__next__"),
            named("", "b.py:7", 8.0))}),
        {("data", "fetch"): 5.0, ("code", "b.py:7"): 8.0, ("data", "read"): 4.0},
    ),
    "two lines of own code": (
        Arm("script", compute={"forward": 9.0, "other": 41.0}, facts={"causes": rows(
            named("", "a.py:3", 30.0, function="save"), named("", "b.py:7", 8.0), named("fetch", "c.py:1", 9.0))}),
        {("code", "a.py:3"): 30.0, ("code", "b.py:7"): 8.0, ("phase", "other"): 3.0},
    ),
    "a hook on gradients": (
        Arm("script", compute={"forward": 9.0, "backward": 30.0}, facts={"causes": rows(
            named("gradient hooks", "a.py:3", 20.0), named("backward", "b.py:7", 10.0))}),
        {("code", "a.py:3"): 20.0, ("phase", "backward"): 10.0},
    ),
    "collections outside of all phases first": (
        Arm("script", compute={"forward": 9.0, "other": 4.0}, facts={"causes": rows(spent("gc", 6.0))}),
        {("gc", "garbage collection"): 6.0, ("phase", "forward"): 7.0},
    ),
    "collections that a line of own code triggers": (
        Arm("script", compute={"forward": 9.0, "other": 41.0}, facts={"causes": rows(
            named("", "a.py:3", 30.0), spent("gc", 5.0, place="a.py:3"), spent("gc", 3.0, place="b.py:7"))}),
        {("code", "a.py:3"): 35.0, ("gc", "garbage collection"): 3.0, ("phase", "other"): 3.0},
    ),
    "collections that take longer than the line that triggers them": (
        Arm("script", compute={"forward": 9.0, "other": 41.0}, facts={"causes": rows(
            named("", "a.py:3", 15.0), spent("gc", 20.0, place="a.py:3"))}),
        {("code", "a.py:3"): 15.0, ("gc", "garbage collection"): 20.0, ("phase", "other"): 6.0},
    ),
    "collections in a line that calls the model": (
        Arm("script", compute={"forward": 9.0, "other": 41.0}, facts={"causes": rows(
            named("", "a.py:3", 30.0, called="torch.nn.modules.module.Module._call_impl"),
            spent("gc", 5.0, place="a.py:3"))}),
        {("code", "a.py:3"): 30.0, ("gc", "garbage collection"): 5.0, ("phase", "other"): 6.0},
    ),
    "collections that a short line triggers": (
        Arm("script", compute={"forward": 9.0, "other": 4.0}, facts={"causes": rows(
            named("", "a.py:3", 0.2), spent("gc", 0.3, place="a.py:3"))}),
        {("gc", "garbage collection"): 0.3, ("code", "a.py:3"): 0.0, ("phase", "other"): 3.7},
    ),
    "compilation": (
        Arm("script", compute={"forward": 29.0}, facts={"causes": (COMPILED,)}),
        {("compile", "compilation"): 5.0, ("phase", "forward"): 24.0},
    ),
    "tokenizing in the loop": (
        Arm("script", compute={"forward": 10.0, "other": 10.0}, facts={"tokenizing_share": 0.2}),
        {("data", "tokenize in the loop"): 4.26, ("phase", "other"): 5.76},
    ),
    "a line that calls the loop of a library": (
        Arm("script", compute={"forward": 9.0, "other": 9.0}, facts={"causes": rows(
            named("forward", "a.py:9", 8.0, called="transformers.trainer.Trainer.train"),
            named("", "a.py:9", 5.0, called="transformers.trainer.Trainer.train"),
            named("", "a.py:3", 3.0))}),
        {("code", "a.py:3"): 3.0, ("code", "a.py:9"): 0.0, ("phase", "other"): 6.0},
    ),
    "a line that calls torch within the model and outside of it": (
        Arm("script", compute={"forward": 9.0, "other": 9.0}, facts={"causes": rows(
            named("forward", "a.py:9", 8.0, called="torch.functional.einsum"),
            named("", "a.py:9", 5.0, called="torch.functional.einsum"))}),
        {("code", "a.py:9"): 5.0, ("phase", "other"): 4.0},
    ),
    "workers that are started again": (
        Arm("script", compute={"forward": 10.0, "other": 10.0}, facts={"iterating_share": 0.2}),
        {("data", "loader restart"): 4.26, ("phase", "other"): 5.76},
    ),
    "workers that are started again, sampled as well": (
        Arm("script", compute={"forward": 10.0, "other": 10.0}, facts={"iterating_share": 0.2, "causes": rows(
            named("", "a.py:3", 5.0, called="torch.utils.data.dataloader.DataLoader.__iter__"))}),
        {("data", "loader restart"): 4.26, ("phase", "other"): 5.02},  # the rest of the line is a wait for data
    ),
    "an evaluation": (
        Arm("script", facts={"evaluating_steps": 2, "evaluating_share": 0.5}),
        {("evaluation", "evaluation"): 22.16},
    ),
    "a wait for other ranks": (
        Arm("script", compute={"forward": 9.0, "backward": 30.0}, off_core={"backward": 10.0},
            facts={"waiting_share": 0.0, "ranks": 2}),
        {("ranks", "waiting for ranks"): 10.0, ("phase", "backward"): 20.0},
    ),
    "a wait for a device or for other ranks": (
        Arm("script", compute={"forward": 9.0, "backward": 30.0}, off_core={"backward": 10.0},
            facts={"waiting_share": 0.0, "ranks": 2, "asynchronous": True}),
        {("ranks", "waiting for ranks"): 0.0, ("phase", "backward"): 30.0},
    ),
    "rare long steps": (
        Arm("script", rare={"backward": 200.0}),
        {("long", "backward"): 200 / 12},
    ),
    "long steps that a line explains": (
        Arm("script", compute={"forward": 9.0, "other": 1.0}, rare={"other": 200.0},
            facts={"causes": rows(named("", "a.py:3", 200 / 12))}),
        {("code", "a.py:3"): 200 / 12, ("phase", "other"): 1.02},
    ),
}  # fmt: skip


def analysed(arm: Arm) -> ArmReport:
    (found,) = analyse(*build([arm], blocks=1, noise=EXACT)).arms
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_part_has_its_time_and_all_sum_to_the_clock(name: str) -> None:
    arm, truth = CASES[name]
    arm.facts = {**ATTACHED, **arm.facts}
    study, (run,) = build([arm], blocks=1, noise=EXACT)
    (found,) = analyse(study, [run]).arms
    parts = {(part.kind, part.name): part.ms.median for part in found.parts}
    assert {key: parts.get(key, 0.0) for key in truth} == {
        key: pytest.approx(ms, rel=0.05) for key, ms in truth.items()
    }
    facts = run.record.facts
    measured = [row["wall_ns"] for row in run.steps.to_pylist() if not row["warmup"]]
    clock_ms = sum(measured) / 1e6 / (1 - (facts.evaluating_share or 0.0))
    assert found.wall.steps == len(measured) + (facts.evaluating_steps or 0)
    assert found.wall.step_ms.median == pytest.approx(clock_ms / found.wall.steps)
    assert sum(parts.values()) == pytest.approx(found.wall.step_ms.median)
    assert sum(part.share for part in found.parts) == pytest.approx(1.0)


def test_a_line_waits_for_a_core_as_its_phase_does() -> None:
    """The phase outside of all others takes 40 ms, and half of the step waits for a core."""
    arm = Arm("script", read=0.0, tokenize=0.0, pack=0.0, compute={"forward": 40.0, "other": 40.0},
              facts={**ATTACHED, "waiting_share": 0.5, "causes": rows(named("", "a.py:3", 30.0))},
              off_core={"forward": 20.0})  # fmt: skip
    found = analysed(arm)
    parts = by_name(found)
    left_ms = parts["a.py:3"].ms.median + parts["other"].ms.median
    assert left_ms < 35
    assert parts["a.py:3"].ms.median == pytest.approx(0.75 * left_ms, rel=0.01)


@pytest.mark.parametrize(("running", "forward_ms"), [(0.25, 20.0), (0.5, 30.0)])
def test_what_sleeps_waits_for_no_core(running: float, forward_ms: float) -> None:
    """Forward has a core for 20 of its 40 ms. The rest of the step sleeps, or has one for 20 ms of its 40, too."""
    facts = {**ATTACHED, "waiting_share": 0.25, "running_share": running}
    arm = Arm("script", read=0.0, tokenize=0.0, pack=0.0, compute={"forward": 40.0, "other": 40.0},
              facts=facts, off_core={"forward": 20.0})  # fmt: skip
    found = analysed(arm)
    assert by_name(found)[WAITING].ms.median == pytest.approx(20.0, rel=0.01)
    assert by_name(found)["forward"].ms.median == pytest.approx(forward_ms, rel=0.02)


def test_a_line_is_named_with_the_call_that_takes_most_of_it() -> None:
    causes = rows(named("", "a.py:3", 9.0, called="json.dump"), named("", "a.py:3", 2.0, called="os.fsync"))
    arm = Arm("script", compute={"forward": 9.0, "other": 12.0}, facts={**ATTACHED, "causes": causes})
    found = analysed(arm)
    part = by_name(found)["a.py:3"]
    assert (part.called, part.ms.median) == ("json.dump", pytest.approx(11.0, rel=0.01))


def test_lines_that_take_little_stay_unnamed() -> None:
    step_ms = 100.0
    line_ms = [9.0 - place for place in range(NAMED_LINES_MAX)] + [3.0, 0.9 * NAMED_LINE_SHARE_MIN * step_ms]
    causes = rows(*(named("", f"a.py:{place}", ms) for place, ms in enumerate(line_ms)))
    arm = Arm("script", read=0.0, tokenize=0.0, pack=0.0, compute={"forward": 40.0, "other": 60.0},
              facts={**ATTACHED, "causes": causes})  # fmt: skip
    found = analysed(arm)
    assert [part.name for part in found.parts if part.kind == "code"] == [f"a.py:{n}" for n in range(NAMED_LINES_MAX)]
    assert by_name(found)["other"].ms.median == pytest.approx(60.02 - sum(line_ms[:NAMED_LINES_MAX]), abs=0.05)


@pytest.mark.parametrize(
    ("share", "called", "expected"),
    [
        (1.1, "json.loads", ("R.get, a.py:11", "x = loads(y)")),  # a line that takes most of the fetch
        (0.9, "json.loads", ("R.get, a.py:9", "")),
        (1.1, "torch.utils.data.dataloader._BaseDataLoaderIter.__next__", ("R.get, a.py:9", "")),
    ],
)
def test_a_stage_of_the_data_has_what_makes_it(share: float, called: str, expected: tuple[str, str]) -> None:
    sampled = named("fetch", "a.py:11", share * STAGE_LINE_SHARE_MIN * 4.02, function="R.get.<locals>.<listcomp>",
                    called=called, code="x = loads(y)")  # fmt: skip
    part = by_name(arm_of(0.0, {}, causes=rows(rows_of(5.0), sampled)))["read"]
    assert (part.called, part.code) == expected


def test_parts_of_the_program_are_shares_of_its_wall_clock() -> None:
    whole = {"start-up": 300.0, "measured steps": 600.0, "end": 100.0}
    found = arm_of(0.0, {}, program_ms=whole).wall
    assert {part.name: part.share for part in found.program} == {"start-up": 0.3, "measured steps": 0.6, "end": 0.1}
    assert found.program[0].name == START_UP
    ours = analysed(Arm("ours"))  # an arm of this trainer has no such parts
    assert (ours.wall, ours.parts) == (None, ())
