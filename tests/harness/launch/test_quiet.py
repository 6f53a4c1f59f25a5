"""The load of others before block 0: what is printed, how long a study waits, and what it keeps of that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.launch.quiet import QUIET_CORES, QUIET_S, LoadCheck, load_check
from harness.machine.cpu import Load, allowed_cpus
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.attach.test_exec import program
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


@pytest.mark.parametrize("minutes", [None, 5.0])
def test_a_quiet_machine_is_measured_once_and_nothing_is_kept(
    minutes: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    for cores in (None, 0.0, QUIET):
        loads = Loads(cores)
        assert LoadCheck(minutes, loads).notes() == []
        assert len(loads.asked_s) == 1
    assert capsys.readouterr() == ("", "")


def test_a_busy_machine_is_one_line_or_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    loads = Loads(BUSY)
    (note,) = LoadCheck(None, loads).notes()
    assert len(loads.asked_s) == 1  # it does not wait
    assert f"others use {BUSY:.2f} of {len(allowed_cpus())} cores (make {BUSY:.2f})" in note
    assert "--wait-until-quiet MINUTES" in note
    assert capsys.readouterr().err == f"warning: {note}\n"

    loads = Loads(BUSY, BUSY, QUIET)
    (note,) = LoadCheck(5.0, loads).notes()
    assert loads.asked_s[1:] == [QUIET_S, QUIET_S]
    assert "busy" not in note
    assert note in capsys.readouterr().err.splitlines()

    (note,) = LoadCheck(1e-9, Loads(BUSY)).notes()  # after its minutes it begins anyway and keeps that
    assert "started anyway" in note
    assert f"warning: {note}" in capsys.readouterr().err.splitlines()


def test_minutes_that_cannot_be_or_are_not_needed_are_refused(tmp_path: Path) -> None:
    for minutes in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="run: --wait-until-quiet"):
            load_check(minutes, "run")
    done = harness("run", "scenarios/quickstart.yaml", "--plan", "--wait-until-quiet", "-5")
    assert done.returncode == 2
    assert done.stderr.startswith("harness: run: --wait-until-quiet -5: allowed: ")
    done = harness("exec", "--wait-until-quiet", "1", "--out", str(tmp_path), "--", "true")  # one run of a command
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "--wait-until-quiet needs --against or --controls" in done.stderr


@pytest.mark.slow
def test_a_comparison_of_commands_keeps_the_load_before_block_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.quiet._load_for", lambda _allowed, seconds: Loads(BUSY)(seconds))
    words = ("--controls", "a-a", "--repeats", "1", "--steps", "5", "--out", str(tmp_path))
    done = harness("exec", *words, "--wait-until-quiet", "0.001", "--", *program("plain", "--steps", 100_000))
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "exec").iterdir()
    (note,) = StudyFolder(path).read_study().notes
    assert "started anyway: this machine is busy: others use " in note
    assert "block 0" not in done.stderr.partition(f"warning: {note}\n")[0] != done.stderr
