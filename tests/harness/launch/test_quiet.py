"""The load of others before block 0: what is printed, how long a study waits, and what it keeps of that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launch.quiet import QUIET_CORES, QUIET_S, LoadCheck, load_check
from harness.machine.cpu import Load, allowed_cpus
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.attach.test_exec import program
from tests.harness.launch.running import only_study, scenario
from trainer.errors import InputError

BUSY, QUIET = 0.9 * len(os.sched_getaffinity(0)), QUIET_CORES / 2  # cores


class Loads:
    """Returns these loads, one per measurement, and the last one from then on."""

    def __init__(self, *cores: float | None) -> None:
        self.cores = list(cores)
        self.asked_s: list[float] = []

    def __call__(self, seconds: float) -> Load | None:
        self.asked_s.append(seconds)
        cores = self.cores.pop(0) if len(self.cores) > 1 else self.cores[0]
        return None if cores is None else Load(seconds, cores, 0.0, (("make", cores),))


@pytest.mark.parametrize("cores", [None, 0.0, QUIET])
@pytest.mark.parametrize("minutes", [None, 5.0])
def test_a_quiet_machine_is_measured_once_and_nothing_is_kept(
    cores: float | None, minutes: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = Loads(cores)
    assert LoadCheck(minutes, loads).notes() == []
    assert len(loads.asked_s) == 1
    assert capsys.readouterr() == ("", "")


def test_a_busy_machine_is_one_line_with_load_consequence_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    loads = Loads(BUSY)
    (note,) = LoadCheck(None, loads).notes()
    assert len(loads.asked_s) == 1  # it does not wait
    assert f"others use {BUSY:.2f} of {len(allowed_cpus())} cores (make {BUSY:.2f})" in note
    assert "--wait-until-quiet MINUTES" in note
    assert capsys.readouterr().err == f"warning: {note}\n"


def test_it_waits_until_others_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    loads = Loads(BUSY, BUSY, QUIET)
    (note,) = LoadCheck(5.0, loads).notes()
    assert loads.asked_s[1:] == [QUIET_S, QUIET_S]
    assert "busy" not in note
    assert note in capsys.readouterr().err.splitlines()


def test_after_its_minutes_it_begins_anyway_and_keeps_that(capsys: pytest.CaptureFixture[str]) -> None:
    loads = Loads(BUSY)
    (note,) = LoadCheck(1e-9, loads).notes()
    assert "started anyway" in note
    assert f"warning: {note}" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_minutes_that_cannot_be_are_refused(minutes: float) -> None:
    with pytest.raises(InputError, match="run: --wait-until-quiet"):
        load_check(minutes, "run")


def test_a_plan_refuses_such_minutes_as_well() -> None:
    done = harness("run", "scenarios/quickstart.yaml", "--plan", "--wait-until-quiet", "-5")
    assert done.returncode == 2
    assert done.stderr.startswith("harness: run: --wait-until-quiet -5: allowed: ")


def test_one_run_of_a_command_waits_for_nothing(tmp_path: Path) -> None:
    done = harness("exec", "--wait-until-quiet", "1", "--out", str(tmp_path), "--", "true")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "--wait-until-quiet needs --against or --controls" in done.stderr


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process uses a core on each CPU for as long as the load is measured."""
    measure = LoadCheck.notes

    def notes(check: LoadCheck) -> list[str]:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
        try:
            return measure(check)
        finally:
            for process in others:
                process.kill()
                process.wait()

    monkeypatch.setattr(LoadCheck, "notes", notes)


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.nightly), ["--wait-until-quiet", "0.01"]])
def test_a_comparison_of_commands_keeps_the_load_before_block_0(options: list[str], tmp_path: Path) -> None:
    words = ("--controls", "a-a", "--repeats", "1", "--steps", "20", "--out", str(tmp_path), *options)
    done = harness("exec", *words, "--", *program("plain", "--steps", 100_000))
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "exec").iterdir()
    (note,) = StudyFolder(path).read_study().notes
    assert "this machine is busy: others use " in note
    assert ("started anyway" in note) == bool(options)
    before = done.stderr.partition(f"warning: {note}\n")[0]
    assert "block 0" not in before


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
def test_a_scenario_keeps_the_load_before_block_0(tmp_path: Path) -> None:
    options = ("--repeats", "1", "--out", str(tmp_path / "out"), "--arm", "text")
    done = harness("run", scenario(tmp_path), *options)
    assert done.returncode == 0, done.stderr
    (note,) = [one for one in only_study(tmp_path / "out").read_study().notes if "this machine is busy" in one]
    assert f"warning: {note}" in done.stderr.splitlines()
