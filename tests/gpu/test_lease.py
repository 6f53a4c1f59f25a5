"""The lease runner: which jobs it chooses, what it keeps of one that is killed, and the page that it writes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.processes import with_variable
from tests.gpu.lease import page
from tests.gpu.lease.__main__ import _alone, _archive, _keep, main
from tests.gpu.lease.plan import Card, plan
from tests.gpu.lease.processes import ROOT, VARIABLE, run_limited
from tests.gpu.lease.sheet import CUT, DONE, RESULT, Figure, Result, Sheet
from tests.gpu.lease.table import JOBS, Job

CARD = Card("NVIDIA H200", 139)


def result(job: str, status: str = DONE, figures: int = 1, emulated: bool = False) -> Result:
    found = [Figure(f"figure {number}", 1.5, "ms", 1.0, 2.0, "2 ms", True) for number in range(figures)]
    return Result(job, CARD.name, emulated, "2026-11-28", "abcdef123456", status=status, figures=found)


def test_card_names_its_folder() -> None:
    assert [Card(name, 80).folder for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")] == ["h200", "h100-80gb-hbm3"]


@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(1, 200)), min_size=1, max_size=12), st.integers(0, 1000)
)  # fmt: skip
def test_a_plan_fits_and_leaves_out_only_what_does_not(sizes: list[tuple[int, int]], seconds: int) -> None:
    jobs = [Job(f"job-{number}", "?", length, memory) for number, (length, memory) in enumerate(sizes)]
    used = 0
    for choice in plan(jobs, Path("there is none"), CARD, seconds):
        fits = choice.job.seconds <= seconds - used and choice.job.memory_gib <= CARD.memory_gib
        assert (choice.start_s == used) if fits else (choice.start_s is None and choice.reason)
        used += choice.job.seconds if fits else 0
    assert used <= seconds


def test_measured_jobs_are_left_out_and_cut_ones_run_again(tmp_path: Path) -> None:
    result(JOBS[0].name).write(tmp_path / "h200" / JOBS[0].name)
    result(JOBS[1].name, CUT).write(tmp_path / "h200" / JOBS[1].name)
    first, second, *_ = plan(JOBS, tmp_path, CARD, 1e6)
    assert first.start_s is None
    assert "abcdef123" in first.reason
    assert second.start_s == 0
    again = plan(JOBS, tmp_path, CARD, 1e6, only=[JOBS[0].name])
    assert [choice.job.name for choice in again if choice.start_s is not None] == [JOBS[0].name]
    other = plan(JOBS, tmp_path, Card("NVIDIA H100", 80), 1e6)
    assert other[0].start_s == 0, "a result of one card says nothing of another"


def test_plan_without_a_card_knows_what_any_card_measured(tmp_path: Path) -> None:
    result(JOBS[0].name).write(tmp_path / "h200" / JOBS[0].name)
    result(JOBS[1].name, emulated=True).write(tmp_path / "emulated" / JOBS[1].name)
    assert [choice.start_s is None for choice in plan(JOBS, tmp_path, None, 1e6)[:2]] == [True, False]


def test_thirteen_minutes_hold_the_first_five_jobs() -> None:
    assert [choice.job for choice in plan(JOBS, Path("there is none"), CARD, 780) if choice.start_s is not None][
        :5
    ] == list(JOBS[:5])
    assert sum(job.seconds for job in JOBS[:5]) <= 720


def test_no_card_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    assert main(["--minutes", "1"]) == 2
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.slow
def test_a_killed_job_keeps_its_figures_and_leaves_no_process(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys, time
from pathlib import Path
from tests.gpu.lease.sheet import Figure, Result, Sheet
sheet = Sheet(Result("a", "b", True, "c", "d"), Path({str(tmp_path)!r}))
sheet.add(Figure("one", 1.0))
child = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"],
                         start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("mark", os.environ[{VARIABLE!r}], flush=True)
time.sleep(600)
"""
    log = tmp_path / "log.txt"
    assert run_limited(["-c", code], log, 10) is None
    kept = Result.read(tmp_path)
    assert (kept.status, [one.name for one in kept.figures]) == (CUT, ["one"])
    mark = re.search(r"^mark (\w+)$", log.read_text(), re.MULTILINE)
    until = time.monotonic() + 120
    while with_variable(VARIABLE, mark[1]) and time.monotonic() < until:
        time.sleep(0.05)
    assert with_variable(VARIABLE, mark[1]) == []


@pytest.mark.slow
def test_exit_code_of_a_job_that_fails(tmp_path: Path) -> None:
    assert run_limited(["-c", "raise SystemExit(3)"], tmp_path / "log.txt", 300) == 3


def test_a_cut_result_with_less_does_not_replace_one_with_more(tmp_path: Path) -> None:
    there, new = tmp_path / "h200" / "a", tmp_path / "new"
    result("a", DONE, 3).write(there)
    result("a", CUT, 2).write(new)
    _keep(result("a", CUT, 2), new, there)
    kept = Result.read(there)
    assert (kept.status, len(kept.figures)) == (DONE, 3)
    result("a", DONE, 2).write(new)
    (new / "page.txt").write_text("a page")
    _keep(result("a", DONE, 2), new, there)
    assert (there / "page.txt").exists()
    result("a", CUT, 2).write(new)
    _keep(result("a", CUT, 2), new, there)
    kept = Result.read(there)
    assert kept.status == DONE, "as many figures, but not all that it was to measure"
    _archive(tmp_path / "h200", tmp_path / "a folder" / "all.tar.gz")
    with tarfile.open(tmp_path / "a folder" / "all.tar.gz") as tar:
        assert "h200/a/page.txt" in tar.getnames()


@pytest.mark.parametrize("content", ['{"job": "a"', "[]", '{"job": "a"}', '{"figures": [1]}', "\xff"])
def test_a_damaged_result_is_measured_again(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "h200" / JOBS[0].name
    folder.mkdir(parents=True)
    (folder / RESULT).write_bytes(content.encode("latin-1"))
    assert plan(JOBS, tmp_path, CARD, 1e6)[0].reason == "not measured yet"
    assert plan(JOBS, tmp_path, None, 1e6)[0].reason == "not measured yet"


def test_a_result_of_a_later_version_is_read_without_its_new_fields(tmp_path: Path) -> None:
    result("a").write(tmp_path)
    content = json.loads((tmp_path / RESULT).read_text())
    content["figures"][0]["new"] = content["new"] = 1
    (tmp_path / RESULT).write_text(json.dumps(content))
    assert Result.read(tmp_path) == result("a")


@pytest.mark.parametrize("minutes", ["nan", "inf", "0", "-1", "ten"])
def test_minutes_that_are_no_time_are_refused(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--plan", "--minutes", minutes])
    assert "--minutes" in capsys.readouterr().err


def test_a_second_runner_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "emulated", "--minutes", "0.001", "--commit", "a", "--results", str(tmp_path)]
    with _alone(tmp_path / "emulated") as alone:
        assert alone
        assert main(words) == 2
    assert "another runner" in capsys.readouterr().out
    assert main(words) == 0  # no time for a job


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.nightly)])
def test_a_runner_that_is_ended_ends_its_job(tmp_path: Path, number: signal.Signals) -> None:
    words = ["-m", "tests.gpu.lease", "--device", "emulated", "--only", "probe-cost", "--work", str(tmp_path / "work")]
    runner = subprocess.Popen([sys.executable, *words, "--results", str(tmp_path / "results")], cwd=ROOT)
    log = tmp_path / "work" / "probe-cost" / "log.txt"
    until = time.monotonic() + 300
    while not log.exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1)
    runner.send_signal(number)
    assert runner.wait(120) == 128 + number
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.exists()]
    assert not [one for one in running if str(tmp_path).encode() in one]


def test_figures_are_on_disk_after_each_one(tmp_path: Path) -> None:
    sheet = Sheet(Result("a", "b", False, "c", "d"), tmp_path)
    for number in range(3):
        sheet.add(Figure(f"{number}", number, holds=True))
        kept = Result.read(tmp_path)
        assert kept.figures == sheet.result.figures


def test_page_lists_every_job_and_what_was_not_run(tmp_path: Path) -> None:
    result(JOBS[0].name).write(tmp_path / "h200" / JOBS[0].name)
    readme = tmp_path / "README.md"
    readme.write_text(f"# On a real GPU\n\n{page.BEGIN}\nold\n{page.END}\n\nFacts.\n")
    page.update(readme, JOBS, tmp_path)
    text = readme.read_text()
    assert "old" not in text
    assert text.endswith("Facts.\n")
    assert text.count("**not run**") == len(JOBS) - 1
    assert "1.5 ms (1 to 2)" in text
    assert "1 of 1" in text
    page.update(readme, JOBS, tmp_path)
    assert readme.read_text() == text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_does_not_end_the_page(value: float) -> None:
    assert page.seen(Figure("a", value, "ms")) == f"{value} ms"


def test_page_without_its_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A page\n")
    with pytest.raises(ValueError, match="no line"):
        page.update(tmp_path / "README.md", JOBS, tmp_path)
