"""The job that runs the tests of this folder."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.gpu.jobs import gpu_tests
from tests.gpu.lease.place import CUDA, EMULATED, Place
from tests.gpu.lease.sheet import Figure, Result, Sheet

TESTS = """
import os, pytest, signal

def test_passes(): pass

def test_fails(): assert 1 == 2, "one is not two"

@pytest.fixture
def broken():
    yield
    raise OSError("cannot be torn down")

def test_ends_badly(broken): pass

@pytest.mark.skip
def test_is_skipped(): pass

def test_ends_the_process(): os.kill(os.getpid(), signal.SIGKILL)

def test_comes_too_late(): pass
"""


def place_in(folder: Path, device: str = CUDA) -> Place:
    for name in ("out", "work"):
        (folder / name).mkdir()
    sheet = Sheet(Result("gpu-tests", device, device == EMULATED, "2026-01-01", "none"), folder / "out")
    return Place(device, folder / "out", folder / "work", time.monotonic() + 120, sheet)


def figures(place: Place) -> dict[str, Figure]:
    found = Result.read(place.out)
    return {figure.name: figure for figure in found.figures}


def test_tests_of_the_runner_and_its_jobs_are_left_out(tmp_path: Path) -> None:
    names = {path.name for path in gpu_tests.files(place_in(tmp_path))}
    assert {"test_exec_cuda.py", "test_cuda.py"} <= names
    assert not {name for name in names if name.endswith("_job.py") or name == "test_lease.py"}


@pytest.mark.slow
def test_the_job_on_an_emulated_device(tmp_path: Path) -> None:
    place = place_in(tmp_path, EMULATED)
    gpu_tests.run(place)
    found = figures(place)
    assert found["failed"].seen == found["skipped"].seen == 0
    assert found["passed"].asked == f"all {found['passed'].seen} that can run"
    assert "not run" not in found


@pytest.mark.slow
def test_outcomes_before_a_kill_are_kept(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    path, outcomes, log = tmp_path / "test_some.py", tmp_path / "outcomes", tmp_path / "log"
    path.write_text(TESTS)
    gpu_tests.run_pytest([path], outcomes, log, 100.0)
    with outcomes.open("a") as file:
        file.write('{"half')
    gpu_tests.record(place, gpu_tests.read(outcomes))
    found = figures(place)
    assert {name: found[name].seen for name in ("passed", "failed", "skipped", "not run")} == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "not run": 2,
    }
    assert found["passed"].holds is False
    problems = {name.rpartition("::")[2]: found[name].seen for name in found if name.startswith("failed: ")}
    assert problems == {
        "test_fails": "AssertionError: one is not two",
        "test_ends_badly": "OSError: cannot be torn down",
    }


@pytest.mark.slow
@pytest.mark.nightly
def test_a_file_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    path, outcomes = tmp_path / "test_some.py", tmp_path / "outcomes"
    path.write_text("import missing_module")
    gpu_tests.run_pytest([path], outcomes, tmp_path / "log", 60.0)
    gpu_tests.record(place, gpu_tests.read(outcomes))
    assert figures(place)["failed"].seen == 1
    assert "missing_module" in str(next(one.seen for name, one in figures(place).items() if name.startswith("failed:")))


@pytest.mark.slow
@pytest.mark.nightly
def test_tests_that_take_too_long_are_ended(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    path, outcomes = tmp_path / "test_some.py", tmp_path / "outcomes"
    path.write_text("import time\ntime.sleep(600)")
    gpu_tests.run_pytest([path], outcomes, tmp_path / "log", 0.5)
    gpu_tests.record(place, gpu_tests.read(outcomes))
    assert (figures(place)["not run"].seen, figures(place)["not run"].holds) == (None, False)
    assert not place.sheet.is_whole
