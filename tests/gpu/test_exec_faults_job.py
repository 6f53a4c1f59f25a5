"""The job that runs CUDA programs with a fault under ``harness exec``, at its least size on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from tests import warm
from tests.gpu.jobs import exec_faults
from tests.gpu.jobs.exec_faults import FAULTS, PROGRAMS, TRIED, Fault
from tests.gpu.lease.place import EMULATED, Place
from tests.gpu.lease.sheet import Result, Sheet

NAMES = [fault.program for fault in FAULTS]
FAULT = Fault("item_each_step", ("loss.item()",), r"waits for a number", bound="launch", idle_for=("read", "tokenize"))


def place_in(folder: Path, seconds: float = 300.0) -> Place:
    sheet = Sheet(Result("exec-faults", EMULATED, True, "2026-01-01", "none"), folder / "out")
    for name in ("out", "work"):
        (folder / name).mkdir()
    return Place(EMULATED, folder / "out", folder / "work", time.monotonic() + seconds, sheet)


def seen(place: Place) -> dict[str, float | str | None]:
    found = Result.read(place.out)
    return {figure.name: figure.seen for figure in found.figures}


def by_turns(*words: str) -> list[dict[str, object]]:
    command = [sys.executable, str(PROGRAMS / "turns.py"), *words, "--device", "cpu"]
    with warm.Popen(command, stdout=subprocess.PIPE) as process:
        output = process.communicate(timeout=300)[0]
    return [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]


@pytest.mark.nightly
@pytest.mark.slow
def test_both_versions_of_every_program_train() -> None:
    rows = by_turns(*NAMES, "--turn", "2", "--rounds", "1")
    assert [(row["script"], row["version"]) for row in rows] == [
        (name, version) for name in NAMES for version in ("slow", "fixed")
    ]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_new_length_is_compiled_anew() -> None:
    rows = by_turns("recompiling_lengths", "--turn", "10", "--rounds", "1")
    assert {row["version"]: row["compilations"] for row in rows} == {"slow": 0.1, "fixed": 0}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_program_that_fails_does_not_keep_the_next_from_running() -> None:
    rows = by_turns("missing", "micro_batches", "--turn", "1", "--rounds", "1")
    assert "missing" in str(rows[0]["problem"])
    assert [row.get("version") for row in rows] == [None, "slow", "fixed"]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_job_on_an_emulated_device(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with mock.patch("tests.gpu.jobs.exec_faults.Popen", warm.Popen):
        exec_faults.run(place)
    figures = seen(place)
    kinds = ("slow", "fixed", "saved by the fix", "slow under exec", "cause named", "saving on the page")
    hooks = {"hooks of exec: step without them", "hooks of exec: added"}
    assert set(figures) == {f"{name}: {kind}" for name in TRIED for kind in kinds} | hooks
    arm = json.loads((place.out / "tokenizing_collate.json").read_text())
    assert figures["tokenizing_collate: saving on the page"] == sum(arm["exposed_ms"].values())
    assert figures["item_each_step: saving on the page"] is None
    assert "trained 14 steps" in (place.out / "item_each_step.txt").read_text()
    kept = [path for path in place.out.iterdir() if path.name != "result.json"]
    assert len(kept) == 3 * len(TRIED)
    assert not [path.name for path in kept if str(tmp_path) in path.read_text() or sys.executable in path.read_text()]


@pytest.mark.parametrize("name", NAMES)
def test_each_fault_is_in_its_program(name: str) -> None:
    (fault,) = (one for one in FAULTS if one.program == name)
    text = (PROGRAMS / f"{name}.py").read_text()
    assert all(part in text for part in fault.code)
    assert len(fault.lines()) >= len(fault.code)


def test_a_cause_is_named_by_its_line_its_kind_or_what_bounds_the_step() -> None:
    (line,) = FAULT.lines()
    assert FAULT.named_by(f"3 ms in item_each_step.py:{line} (item)", {}) == f"item_each_step.py:{line}"
    assert FAULT.named_by(f"3 ms in item_each_step.py:{line}0 (item)", {}) is None
    assert FAULT.named_by("3 ms: the host waits\n  for a number", {}) == "waits for a number"
    assert FAULT.named_by("", {"bound": "launch"}) == "bound: launch"
    assert FAULT.named_by("", {"bound": "device"}) is None
    assert Fault("micro_batches", (), "launch-bound").named_by("device-bound", {}) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_page_that_only_mentions_the_program_names_no_cause(fault: Fault) -> None:
    last = len((PROGRAMS / f"{fault.program}.py").read_text().splitlines())
    page = f"python {fault.program}.py: 5 ms blocked, mostly in {fault.program}.py:{last} study: {fault.program}/exec"
    assert fault.named_by(page, {"bound": "device"}) is None


def test_the_saving_is_the_idle_time_and_of_a_cpu_the_exposed_time() -> None:
    exposed = {"read": 1.0, "tokenize": 2.0, "pack": 4.0}
    assert FAULT.saving_ms({"starved_ms": {"read": 0.5, "tokenize": 1.5, "python": 9.0}, "exposed_ms": exposed}) == 2.0
    assert FAULT.saving_ms({"starved_ms": {}, "exposed_ms": exposed}) == 3.0
    assert FAULT.saving_ms({}) is None


@dataclass(frozen=True)
class RealPlace(Place):
    """A place whose figures are judged, though no device is there."""

    @property
    def emulated(self) -> bool:
        return False


def judged(folder: Path) -> RealPlace:
    place = place_in(folder)
    return RealPlace(place.device, place.out, place.work, place.until, place.sheet)


def turn(version: str, ms: float) -> dict[str, object]:
    return {"script": "p", "version": version, "ms": ms, "allocator_retries": 0.5, "compilations": 0.0}


def test_turns_that_a_kill_cut_short_still_give_a_saving(tmp_path: Path) -> None:
    place = judged(tmp_path)
    rows = [turn("slow", 9.0), turn("fixed", 5.0), turn("fixed", 5.0), turn("slow", 11.0), turn("slow", 30.0)]
    assert exec_faults._saving(place, "p", rows) == {"p": 5.0}
    figures = {figure.name: figure for figure in place.sheet.result.figures}
    assert (figures["p: saved by the fix"].low, figures["p: saved by the fix"].holds) == (None, True)
    assert figures["p: slow, allocator retries"].seen == 0.5
    assert "p: slow, compilations" not in figures


@pytest.mark.parametrize(("least", "holds"), [(1.0, True), (-1.0, False)])
def test_a_fix_that_may_save_nothing_does_not_hold(tmp_path: Path, least: float, holds: bool) -> None:
    place = judged(tmp_path)
    for number in range(6):
        place.sheet.result.figures.clear()
        rows = [turn("slow", 5.0 + (least if at == number else 2.0)) for at in range(6)] + [turn("fixed", 5.0)] * 6
        exec_faults._saving(place, "p", rows)
        figure = place.sheet.result.figures[-1]
        assert (figure.low, figure.high, figure.holds) == (least, 2.0, holds)


@pytest.mark.slow
def test_a_process_that_does_not_end_is_killed_and_keeps_what_it_printed(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    code = "import time; print('{\"script\": 1}\\n{\"cut', end='', flush=True); time.sleep(600)"
    with exec_faults._lines(place, "", ["-c", code], 3.0) as rows:
        assert list(rows) == [{"script": 1}]
    assert seen(place) == {"watched: ended early": "exit code -9"}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_page_that_cannot_be_made_is_a_figure(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    broken = Fault("missing", (), "never")
    with mock.patch("tests.gpu.jobs.exec_faults.Popen", warm.Popen):
        exec_faults._pages(place, [broken], {})
    assert str(seen(place)["missing: cause named"]).startswith("no study, exit code")


@pytest.mark.slow
def test_a_page_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with mock.patch("tests.gpu.jobs.exec_faults.PAGE_S", 0.3):
        exec_faults._pages(place, [FAULT], {})
    assert seen(place) == {"item_each_step: cause named": "no study, exit code -9: "}


def test_a_program_for_which_no_time_is_left_is_listed(tmp_path: Path) -> None:
    place = place_in(tmp_path, seconds=1.0)
    exec_faults._pages(place, [FAULT], {})
    assert seen(place) == {"item_each_step: cause named": None}
