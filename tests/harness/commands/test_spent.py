"""``harness spent``: what lies below folders, each counted once, with its price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.study.records import ONE_TRAINING, RunFacts, RunRecord, StudyRecord
from harness.study.store import StudyFolder
from tests.commands import harness


def utc(minute: int) -> str:
    return f"2026-01-01T00:{minute:02d}:00+00:00"


def study(folder: Path, *runs: tuple[str, int, int], command: str = "run", **about: object) -> Path:
    """``runs``: arm, and the minutes at which it began and ended."""
    store = StudyFolder(folder)
    facts = about.pop("facts", RunFacts())
    assert isinstance(facts, RunFacts)
    order = [[arm for arm, _, _ in runs]]
    store.write_study(StudyRecord("s", "", "done", command=["harness", command], order=order, blocks=1, **about))  # type: ignore[arg-type]  # by name
    for arm, begin, end in runs:
        store.write_run(RunRecord(arm, 0, "done", started_utc=utc(begin), ended_utc=utc(end), facts=facts))
    return folder


def sweep(folder: Path, lost_s: float, *trials_s: float, price: float | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"schema": 1, "lost_s": lost_s, "price_usd_per_hour": price}))
    for number, seconds in enumerate(trials_s):
        trial = study(folder / f"trials/{number:04d}", ("plain", 0, 50))  # part of the sweep: not counted by itself
        (trial / "spent.json").write_text(json.dumps({"seconds": seconds, "steps": 1, "tokens": 1}))
    return folder


def spent(*words: object) -> dict[str, list[tuple[str, float, float | None]]]:
    done = harness("spent", *map(str, words), "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    found: dict[str, list[tuple[str, float, float | None]]] = {}
    for one in content["expenses"]:
        found.setdefault(one["kind"], []).append((Path(one["folder"]).name, one["seconds"], one["usd"]))
    rows = [row for rows in found.values() for row in rows]
    assert content["seconds"] == pytest.approx(sum(seconds for _, seconds, _ in rows))
    priced = [usd for _, _, usd in rows if usd is not None]
    assert content["usd"] == (pytest.approx(sum(priced)) if priced else None)
    return found


def test_cost_probes_sweeps_and_trainings_add_up(tmp_path: Path) -> None:
    priced = {"scenario_text": {"price_usd_per_hour": 6.0}}
    whole = {"created_utc": utc(0), "ended_utc": utc(3)}
    study(tmp_path / "cost/small/probe", ("a", 1, 2), ("b", 2, 3), command="cost", **priced, **whole)
    study(tmp_path / "run", ("a", 0, 10), command="train", interleave_reason=ONE_TRAINING, **priced)
    study(tmp_path / "turns", ("a", 0, 10), ("b", 5, 12), ("c", 20, 21))  # the first two took turns
    sweep(tmp_path / "sweeps/s", 30.0, 60.0, 90.0, price=3.0)
    found = spent(tmp_path)
    assert found["cost probe"] == [("probe", 180.0, pytest.approx(0.3))]
    assert found["sweep"] == [("s", 180.0, pytest.approx(0.15))]
    assert found["training"] == [("run", 600.0, pytest.approx(1.0))]
    assert found["study"] == [("turns", 780.0, None)]
    assert spent(tmp_path, tmp_path / "run", tmp_path) == found  # each once
    assert spent(tmp_path / "run", "--price", 12)["training"] == [("run", 600.0, pytest.approx(2.0))]
    lines = harness("spent", str(tmp_path)).stdout.splitlines()
    assert lines[-2].split() == ["sum", "all", "0.483", "1.45"]
    assert lines[-1].startswith("1 folder of 4 without a price")


def test_the_price_of_devices_counts_and_that_of_an_emulated_one_does_not(tmp_path: Path) -> None:
    device = RunFacts(price_per_hour_usd=2.0, device_count=4)
    study(tmp_path / "real", ("a", 0, 30), facts=device)
    study(tmp_path / "emulated", ("a", 0, 30), facts=RunFacts(price_per_hour_usd=2.0, emulated=True))
    assert spent(tmp_path)["study"] == [("emulated", 1800.0, None), ("real", 1800.0, pytest.approx(4.0))]


def test_what_is_damaged_is_named_and_not_counted(tmp_path: Path) -> None:
    study(tmp_path / "whole", ("a", 0, 1))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/sweep.json").write_text("{")
    done = harness("spent", str(tmp_path), "--json")
    assert done.returncode == 0
    assert [one["seconds"] for one in json.loads(done.stdout)["expenses"]] == [60.0]
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"not counted: {tmp_path}/broken/sweep.json: ")


def test_a_run_within_the_folder_of_another_one_counts_once(tmp_path: Path) -> None:
    outer = study(tmp_path / "outer", ("a", 0, 10))
    study(outer / "inner", ("a", 0, 5))
    study(sweep(tmp_path / "s", 30.0, 60.0) / "beside", ("a", 0, 2))
    study(tmp_path / "s/pilot", ("a", 0, 2))
    found = spent(tmp_path, outer, outer / "inner")
    assert found == {
        "study": [("outer", 600.0, None), ("inner", 300.0, None), ("beside", 120.0, None)],
        "sweep": [("s", 90.0, None)],
    }


def damage(run_json: Path, how: str) -> None:
    if how == "removed":
        run_json.unlink()
    elif how == "list":
        run_json.write_text("[]")
    else:
        changed = {**json.loads(run_json.read_text()), "started_utc": how}
        run_json.write_text(json.dumps({key: value for key, value in changed.items() if key != "content"}))


@pytest.mark.parametrize("how", ["removed", "list", "yesterday", utc(40)])
def test_a_run_record_without_a_time_is_named_and_only_it_is_not_counted(tmp_path: Path, how: str) -> None:
    folder = study(tmp_path / "part", ("a", 0, 10), ("b", 20, 25), command="train", interleave_reason=ONE_TRAINING)
    lone = study(tmp_path / "lone", ("a", 0, 10), command="train", interleave_reason=ONE_TRAINING)
    for one in (folder, lone):
        damage(one / "runs/a/0/run.json", how)
    done = harness("spent", str(tmp_path), "--json")
    assert done.returncode == 0
    assert [(one["folder"], one["seconds"]) for one in json.loads(done.stdout)["expenses"]] == [(str(folder), 300.0)]
    named = [line.partition("/run.json: ")[::2] for line in done.stderr.splitlines()]
    assert [path for path, _ in named] == [f"not counted: {one}/runs/a/0" for one in (lone, folder)]
    assert all(reason for _, reason in named)
    assert harness("spent", str(lone)).returncode == 2


def test_a_trial_whose_time_is_damaged_costs_only_its_own_hours(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "s", 30.0, 60.0, 1.0, 1.0, 1.0, 1.0, 90.0)
    damaged = ['{"seconds": -5}', '{"seconds": "x"}', "{", "{}"]
    for number, content in enumerate(damaged, 1):
        (folder / f"trials/{number:04d}/spent.json").write_text(content)
    done = harness("spent", str(folder), "--json")
    assert json.loads(done.stdout)["seconds"] == 180.0
    lines = done.stderr.splitlines()
    assert [line.partition(".json: ")[0] for line in lines] == [
        f"not counted: {folder}/trials/{number:04d}/spent" for number in range(1, 5)
    ]
    assert "-5 is not a duration" in lines[0]


@pytest.mark.parametrize("words", [["nowhere"], ["empty"], ["empty", "--price", "-1"], ["empty", "--price", "nan"]])
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    done = harness("spent", str(tmp_path / words[0]), *words[1:])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
