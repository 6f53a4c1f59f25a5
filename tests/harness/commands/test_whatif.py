"""harness whatif, from a study's folder to its text, JSON and picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from harness.cli import main
from harness.study.records import ArmRecord, StudyRecord
from harness.study.store import StudyFolder
from tests.harness import synthetic
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth

BASE = Truth(tokenize=14.0, workers=1, spread=0.1, steps=24)
DEVICE = {"emulated": "gh200", "speed": 1.0}


def write(folder: Path, arms: dict[str, Truth], blocks: int = 3, **facts: object) -> StudyFolder:
    """A study of ``arms``, run by the oracle."""
    study = StudyFolder(folder)
    study.write_study(StudyRecord("synthetic", "What if?", "done", arms=[ArmRecord(name) for name in arms]))
    for name, truth in arms.items():
        for block in range(blocks):
            run = oracle.run(truth.having(seed=block), arm=name, block=block, device="paper", **facts)
            compute = {"device": {**DEVICE, "speed": truth.speed}, "check_finite": truth.sync}
            study.write_run(replace(run.record, config={**run.record.config, "compute": compute}))
            study.write_tables(name, block, run.steps.to_pydict(), run.spans.to_pydict(), {})
    return study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    arms = {"base": BASE, "two": BASE.having(workers=2), "fast": BASE.having(speed=2.0)}
    return write(tmp_path_factory.mktemp("whatif") / "study", arms, emulated=True)


@pytest.fixture(scope="module")
def off(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """A study each of whose steps is 5 ms longer than its spans account for."""
    study = write(tmp_path_factory.mktemp("off") / "study", {"base": BASE})
    for run in list(study.runs()):
        steps = run.steps.to_pydict()
        steps["wall_ns"] = [wall + 5_000_000 for wall in steps["wall_ns"]]
        steps["start_ns"] = [start + 5_000_000 * row for row, start in enumerate(steps["start_ns"])]
        steps = pa.table(steps, schema=run.steps.schema).to_pydict()
        study.write_tables("base", run.record.block, steps, run.spans.to_pydict(), {})
    return study


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["whatif", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_prediction_is_printed_with_its_validation_error_and_the_arm_that_checks_it(
    study: StudyFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = ask(capsys, str(study.path), "--arm", "base", "--set", "workers=2")
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["base"] == "base of synthetic, replayed with workers=2, on an emulated device"
    assert "the unedited replay is +0.0 % off" in lines["validation"]
    assert "as fast" in lines["predicted"]
    assert "tokens/s" in out
    assert lines["why"].startswith("why        device idle while waiting for")
    assert lines["checked"].startswith("checked by two measured ")
    assert all("median of 3 blocks" in lines[name] for name in ("measured", "predicted", "checked"))


def test_json_says_the_same(study: StudyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ask(capsys, str(study.path), "--arm", "base", "--set", "workers=2", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["emulated"] is True
    assert found["licence"]["granted"] is True
    assert found["edits"] == ["workers=2"]
    (other,) = found["beside"]
    assert other["arm"] == "two"
    assert found["step_ms"]["median"] == pytest.approx(other["step_ms"]["median"], rel=0.02)
    assert found["step_ms"]["ci_low"] <= found["step_ms"]["median"] <= found["step_ms"]["ci_high"]
    assert found["ratio"]["median"] == pytest.approx(
        found["step_ms"]["median"] / found["measured_ms"]["median"], rel=0.01
    )


def test_the_error_of_the_replay_is_no_gain_and_a_doubt_of_a_sweep(
    off: StudyFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a change the ratio is 1, however far the replay is off, and the interval includes both."""
    _, out, _ = ask(capsys, str(off.path), "--set", "pack=1x")
    assert ": 1.000x as fast as the unedited replay (0.8" in out
    _, out, _ = ask(capsys, str(off.path), "--set", "pack=1x", "--json")
    found = json.loads(out)
    assert found["speedup"]["median"] < 0.95
    assert (found["gain"]["median"], found["gain"]["ci_high"]) == pytest.approx((1.0, 1.0))
    _, out, _ = ask(capsys, str(off.path), "--sweep", "workers=1,2", "--out", str(tmp_path))
    assert "\ndoubt      the replay reproduces its step time with an error of " in out


def test_a_sweep_draws_its_picture_here_and_finds_the_crossover(
    study: StudyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It drew it into the study, which may be tracked."""
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in study.path.rglob("*")}
    status, out, _ = ask(capsys, str(study.path), "--arm", "base", "--sweep", "device=0.5x,1x,2x,4x")
    assert status == 0
    assert "crossover at 1 % of the step: tokenization starts to matter between device=" in out
    assert any(line.split()[:1] == ["2x"] and line.endswith(" by fast") for line in out.splitlines())
    assert (tmp_path / "whatif-base-device.png").read_bytes().startswith(b"\x89PNG")
    assert {path: path.stat().st_mtime_ns for path in study.path.rglob("*")} == before
    assert "predicted" not in out  # nothing was set but what was swept


def test_a_sweep_without_a_crossover_says_so(
    study: StudyFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(study.path), "--arm", "base", "--set", "device=4x", "--sweep", "workers=0,1", "--json"]
    status, out, _ = ask(capsys, *arguments, "--out", str(tmp_path / "new"))
    swept = json.loads(out)["sweep"]
    assert status == 0
    assert swept["crossings"] == []
    assert swept["sentence"].startswith("no crossover: tokenization costs at least ")
    assert swept["picture"] == str(tmp_path / "new" / "whatif-base-workers.png")
    assert Path(swept["picture"]).is_file()
    assert [point["value"] for point in swept["points"]] == ["0", "1"]


def test_what_cannot_repeat_the_past_is_outside_tolerance(off: StudyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ask(capsys, str(off.path), "--set", "tokenize=0")
    assert status == 0
    assert "more than 5.0 %, so do not rely on this prediction" in out
    assert "\noutside tolerance: " in out
    assert "predicted " not in out


def test_too_few_blocks_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write(tmp_path / "study", {"base": BASE}, blocks=1)
    _, out, _ = ask(capsys, str(study.path), "--set", "tokenize=0")
    assert "interval from replicates, without run-to-run" in out
    assert "emulated" not in out


def test_a_study_without_a_device_queue_is_answered_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tables of the synthetic studies that the rest of the analysis is tested with."""
    arms = [synthetic.Arm("a"), synthetic.Arm("b", workers=1)]
    synthetic.write(StudyFolder(tmp_path), *synthetic.build(arms, [("a", "b")]))
    for arm in ("a", "b"):
        status, out, _ = ask(capsys, str(tmp_path), "--arm", arm, "--set", "tokenize=0", "--set", "ranks=4")
        assert status == 0
        assert "step waits for" in out


@pytest.mark.parametrize(("arguments", "says"), [
    (["--arm", "base", "--set", "tokenise=0"], "unknown key 'tokenise'; did you mean 'tokenize'?"),
    (["--arm", "basis", "--set", "tokenize=0"], "no such arm; did you mean 'base'? arms: base, "),
    (["--set", "tokenize=0"], "give --arm NAME; arms: base, fast, two"),
    (["--arm", "base"], "nothing to change"),
    (["--arm", "base", "--sweep", "device=1x"], "at least 2 different values"),
    (["--arm", "base", "--set", "tokenize=0", "--out", "x"], "--out needs --sweep"),
    (["--arm", "base", "--sweep", "device=1x,2x", "--out", "/dev/null"], "--out /dev/null: cannot write there"),
])  # fmt: skip
def test_wrong_input_is_one_line_and_exit_2(
    study: StudyFolder, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    status, out, error = ask(capsys, str(study.path), *arguments)
    assert (status, out) == (2, "")
    assert says in error
    assert error.count("\n") == 1


def test_an_arm_that_never_finished_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write(tmp_path / "study", {"base": BASE}, blocks=1)
    (run,) = study.runs()
    study.write_run(replace(run.record, status="failed"))
    status, _, error = ask(capsys, str(study.path), "--set", "tokenize=0")
    assert status == 2
    assert "no finished run with tables to replay" in error
