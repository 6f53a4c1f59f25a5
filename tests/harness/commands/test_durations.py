"""How long a study takes: by an earlier study of the same arms, by a trial, or unknown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.commands import durations, init
from harness.commands.durations import Duration, expected
from harness.judge.cost import ArmMeasurement
from harness.launch.study import arm_record
from harness.machine.environment import record_environment
from harness.scenario.commands import CommandPlan, CommandScenario, open_scenario, plan_commands
from harness.scenario.plan import Plan, make_plan
from harness.study.records import ArmRecord, StudyRecord
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.commands.test_init import init_arguments
from trainer.errors import InputError

TRAINED = {
    "name": "mine",
    "question": "?",
    "base": {"model": {"preset": "gpt2-tiny"}, "steps": 16, "warmup_steps": 4},
    "arms": {"text": {"data.path": "text-stream"}, "tokens": {"data.path": "tokens-stream"}},
    "controls": ["a-a"],
    "repeats": 3,
}
COMMANDS = {
    "name": "mine",
    "question": "?",
    "command": "python train.py --workers {workers}",
    "arms": {"none": {"workers": 0}, "two": {"workers": 2}},
    "controls": ["a-a"],
    "repeats": 3,
    "steps": 16,
    "warmup": 4,
}
TOOK_S = 90
pytestmark = pytest.mark.slow  # the environment of a study asks git


def planned(folder: Path, content: dict[str, object]) -> Plan | CommandPlan:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    scenario = open_scenario(path)
    return plan_commands(scenario) if isinstance(scenario, CommandScenario) else make_plan(scenario, str(path))


def earlier(plan: Plan | CommandPlan) -> StudyRecord:
    """A study of ``plan`` that took TOOK_S."""
    if isinstance(plan, CommandPlan):
        arms = [ArmRecord(arm.name, arm.control, arm.of, declared=arm.declared, config={}) for arm in plan.arms]
    else:
        arms = [arm_record(arm) for arm in plan.arms]
    return StudyRecord(
        "mine",
        "?",
        "done",
        created_utc="2026-01-01T00:00:00+00:00",
        ended_utc=f"2026-01-01T00:0{TOOK_S // 60}:{TOOK_S % 60:02}+00:00",
        scenario_text=plan.scenario.model_dump(mode="json"),
        order=[list(block) for block in plan.blocks],
        arms=arms,
        environment=record_environment(),
    )


def keep(out: Path, record: StudyRecord, name: str = "20260101T000000Z-000001") -> None:
    path = out / "mine" / name
    path.mkdir(parents=True)
    StudyFolder(path).write_study(record)


@pytest.mark.parametrize(("content", "changes", "seconds"), [
    *((content, changes, seconds) for content in (TRAINED, COMMANDS) for changes, seconds in (({}, TOOK_S),
     ({"repeats": 6}, 2 * TOOK_S), ({"controls": []}, TOOK_S * 2 / 3))),
    (TRAINED, {"base": {"model": {"preset": "gpt2-tiny"}, "steps": 36, "warmup_steps": 4}}, 2 * TOOK_S),
    (COMMANDS, {"steps": 36}, 2 * TOOK_S),
])  # fmt: skip
def test_an_earlier_study_tells_by_the_number_of_steps(
    content: dict[str, object], changes: dict[str, object], seconds: float, tmp_path: Path
) -> None:
    keep(tmp_path, earlier(planned(tmp_path, content)))
    found = expected(planned(tmp_path, content | changes), tmp_path)
    assert found.seconds == pytest.approx(seconds)
    assert "mine/20260101T000000Z-000001 took 90 s for 9 runs" in found.basis


def test_the_newest_finished_study_counts(tmp_path: Path) -> None:
    plan = planned(tmp_path, TRAINED)
    record = earlier(plan)
    keep(tmp_path, replace(record, ended_utc="2026-01-01T01:00:00+00:00"))
    keep(tmp_path, record, "20260102T000000Z-000001")
    keep(tmp_path, replace(record, status="interrupted"), "20260103T000000Z-000001")
    assert (found := expected(plan, tmp_path)) is not None
    assert found.seconds == TOOK_S


@pytest.mark.parametrize("changes", [
    {"status": "failed"},
    {"ended_utc": ""},
    {"ended_utc": "2026-01-01T00:01:30"},  # without a time zone
    {"notes": ["resumed 2026-01-02T00:00:00+00:00: harness run"]},
    {"environment": {"cpu": "another", "cores": 2}},
    {"order": []},
])  # fmt: skip
def test_a_study_that_tells_nothing_is_no_basis(changes: dict[str, object], tmp_path: Path) -> None:
    plan = planned(tmp_path, TRAINED)
    keep(tmp_path, replace(earlier(plan), **changes))  # type: ignore[arg-type]
    assert expected(plan, tmp_path) is None


@pytest.mark.parametrize(("content", "changes"), [
    (TRAINED, {"base": {"model": {"preset": "gpt2-tiny", "layers": 1}, "steps": 16, "warmup_steps": 4}}),
    (COMMANDS, {"command": "python other.py --workers {workers}"}),
    (COMMANDS, {"arms": {"none": {"workers": 0}, "two": {"workers": 4}}}),
])  # fmt: skip
def test_other_arms_are_no_basis(content: dict[str, object], changes: dict[str, object], tmp_path: Path) -> None:
    keep(tmp_path, earlier(planned(tmp_path, content)))
    assert expected(planned(tmp_path, content | changes), tmp_path) is None


@pytest.mark.parametrize("content", [TRAINED, COMMANDS], ids=["trained", "commands"])
def test_the_plan_ends_with_it(content: dict[str, object], tmp_path: Path) -> None:
    plan = planned(tmp_path, content)
    unknown = harness("run", "mine.yaml", "--plan", cwd=tmp_path).stdout.splitlines()[-1]
    assert unknown.startswith("expected duration: unknown")
    assert "mine.yaml" in unknown  # the command that measures it
    keep(tmp_path / "results", earlier(plan))
    known = harness("run", "mine.yaml", "--plan", cwd=tmp_path).stdout.splitlines()[-1]
    assert known.startswith("expected duration: about 2 minutes on this machine (results/mine/")


def test_the_plan_for_programs_has_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, TRAINED)
    words = ("run", "mine.yaml", "--plan", "--json")
    assert json.loads(harness(*words, cwd=tmp_path).stdout)["expected"] is None
    keep(tmp_path / "results", earlier(plan))
    assert json.loads(harness(*words, cwd=tmp_path).stdout)["expected"]["seconds"] == TOOK_S


@pytest.mark.parametrize(("shares", "slowed"), [((0.0, 0.04), False), ((0.01, 0.47), True)])
def test_a_trial_beside_other_work_says_so(shares: tuple[float, ...], slowed: bool) -> None:
    measured = [ArmMeasurement("a", (1.0, 1.0), 1, 1.0, 1.0, waiting_share=share) for share in shares]
    basis = durations._trial_basis(measured, Path("here"))
    assert basis.startswith("a trial of 2 steps of every arm, here")
    assert (f"{max(shares):.0%}" in basis) == slowed


@pytest.mark.parametrize(("seconds", "repeats"), [(200.0, 5), (300.0, 5), (350.0, 4), (500.0, 3), (9000.0, 3)])
def test_init_writes_fewer_blocks_where_five_take_too_long(
    seconds: float, repeats: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(durations, "trial", lambda *_: Duration(seconds, "tried"))
    assert init.init(init_arguments("mine.yaml"), []) == 0
    scenario = open_scenario(tmp_path / "mine.yaml")
    assert scenario.repeats == repeats
    shown = capsys.readouterr().out
    assert Duration(seconds * repeats / 5, "").text.partition(" (")[0] in shown
    assert ("  that is long" in shown) == (seconds * repeats / 5 > init.MOST_S)


def test_init_keeps_its_file_where_the_trial_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> Duration:
        raise InputError("no such tokenizer")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(durations, "trial", fails)
    assert init.init(init_arguments("mine.yaml"), []) == 0
    assert open_scenario(tmp_path / "mine.yaml").repeats == init.REPEATS
    assert "expected duration: unknown (the trial failed: no such tokenizer); harness cost" in capsys.readouterr().out
