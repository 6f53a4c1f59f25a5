"""``harness watch``: which program is looked at, and what one look at a running one says."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from harness.attach import live
from harness.attach.command import MARK
from harness.attach.live import RECENT_SEGMENTS, RecordedProgram, find_program, is_over, recorded_programs
from harness.attach.retention import LAST
from harness.commands import watch
from harness.show.terminal import look, sparkline
from tests import warm
from tests.commands import harness
from tests.harness.attach.running import PROGRAMS
from tests.harness.explain.test_history import minute
from tests.harness.show.test_metrics import receiver
from trainer.errors import InputError


def make_proc(root: Path, environments: dict[int, str]) -> None:
    for pid, environment in environments.items():
        (root / "proc" / str(pid)).mkdir(parents=True)
        (root / "proc" / str(pid) / "environ").write_text(environment)


@pytest.fixture
def programs(tmp_path: Path) -> list[RecordedProgram]:
    raws = [tmp_path / name / "raw" for name in ("first", "second")]
    for raw in raws:
        raw.mkdir(parents=True)
    gone = f"A=1\0{MARK}={tmp_path / 'gone'}\0"
    make_proc(tmp_path, {7: f"{MARK}={raws[0]}\0", 9: f"A=1\0{MARK}={raws[0]}\0", 8: f"{MARK}={raws[1]}\0", 3: gone})
    (tmp_path / "proc" / "self").mkdir()
    return recorded_programs(tmp_path)


def test_a_program_is_found_by_any_of_its_processes_and_by_its_study(
    programs: list[RecordedProgram], tmp_path: Path
) -> None:
    first, second = programs
    assert (first.pids, second.pids) == ((7, 9), (8,))
    assert find_program("9", programs) == first
    assert find_program(str(tmp_path / "second"), programs) == second
    assert find_program(None, [second]) == second


@pytest.mark.parametrize(
    ("target", "known", "named"),
    [(None, 0, "no program is recorded"), (None, 2, "7, 8"), ("3", 2, "3"), ("nowhere", 2, "nowhere")],
)
def test_any_other_target_is_refused_in_one_line(
    programs: list[RecordedProgram], target: str | None, known: int, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        find_program(target, programs[:known])


def test_it_is_over_when_no_process_is_left(programs: list[RecordedProgram], tmp_path: Path) -> None:
    (second,) = programs[1:]
    assert not is_over(second, tmp_path)
    (tmp_path / "proc" / "8" / "environ").unlink()
    (tmp_path / "proc" / "8").rmdir()
    assert is_over(second, tmp_path)


def test_a_look_has_a_row_for_each_rank() -> None:
    minutes = [minute(number, 100, 10.0 * (number + 1)) for number in range(4)]
    text = look(None, {"rank-0": minutes, "rank-1": minutes[:2], "rank-2": []})
    assert [line.split()[:4] for line in text[3:]] == [
        ["rank-0", "40.0", "80.0", "120"],
        ["rank-1", "20.0", "40.0", "60.0"],
    ]
    assert [line.split()[-1] for line in text[3:]] == [sparkline([1, 2, 3, 4]), sparkline([1, 2])]


@pytest.mark.parametrize(("values", "bars"), [([0.0, 0.0], "▁▁"), ([1.0, 8.0], "▂█"), ([5.0], "█")])
def test_a_bar_begins_at_zero(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


def test_no_file_of_a_look_is_deleted_when_one_more_segment_begins() -> None:
    assert RECENT_SEGMENTS <= LAST


def test_a_record_that_goes_during_a_look_ends_it(
    programs: list[RecordedProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> bool:
        raise FileNotFoundError

    monkeypatch.setattr(live, "recent_study", gone)
    with pytest.raises(FileNotFoundError):  # The record is there: another file is missing.
        watch._look(programs[0])
    programs[0].raw.rmdir()
    assert watch._look(programs[0]) == ["The program has ended."]


@pytest.mark.parametrize("words", ["--web --port 70000", "--every nan"])
def test_an_impossible_value_is_one_line(words: str) -> None:
    done = harness("watch", *words.split())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert " ".join(words.split()[-2:]) in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["watch", "--otlp", "localhost:4318"], "--otlp localhost:4318"),
        (["watch", "--prometheus", "0"], "--prometheus 0"),
        (["watch", "--once", "--prometheus", "9464"], "--once"),
        (["exec", "--otlp", "ftp://x", "--", "true"], "--otlp ftp://x"),
        (["exec", "--prometheus", "9464", "--controls", "a-a", "--", "true"], "--prometheus"),
    ],
)
def test_an_export_that_cannot_work_is_refused(words: list[str], named: str) -> None:
    done = harness(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert named in done.stderr


@pytest.mark.slow
def test_a_running_program_is_looked_at(tmp_path: Path) -> None:
    """It stops in its last step until it has been looked at; its record is as long as before."""
    go_on = tmp_path / "go-on"
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(go_on=go_on, done=tmp_path / "done"))
    out = tmp_path / "results"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with receiver() as (address, got):
        exec_ = ["exec", "--otlp", address, "--out", str(out), "--", sys.executable, str(script)]
        command = [sys.executable, "-m", "harness", *exec_]
        with warm.Popen(command, cwd=PROGRAMS.parents[3], stdout=subprocess.DEVNULL) as process:
            try:
                while not (tmp_path / "done").exists() and process.poll() is None:
                    time.sleep(0.05)
                (raw,) = out.glob("exec/*/raw")
                before = {path.name: path.stat().st_size for path in raw.iterdir()}
                done = harness("watch", "--once", str(raw.parent))
                words = ["watch", str(raw.parent), "--web", "--prometheus", str(port), "--every", "1"]
                watching = [sys.executable, "-m", "harness", *words]
                with warm.Popen(watching, stdout=subprocess.PIPE, text=True) as view:
                    fetched(view.stdout.readline().split()[-1], "harness_steps_total")
                    page = fetched(view.stdout.readline().split()[1], "</html>")
                    assert {path.name: path.stat().st_size for path in raw.iterdir()} == before
                    wait_for(lambda: all(got.values()))  # metrics, traces and events of the exec's own export
                    go_on.touch()
                    assert view.wait(300) == 0
                    assert str(raw.parent) in view.stdout.read()
                assert "ms a step" in page
                assert str(script) in page  # the command, in the question
                assert "connect-src 'self'" in page  # else the browser refuses to listen
            finally:
                go_on.touch()
    assert process.returncode == 0
    assert done.returncode == 0, done.stderr
    assert "ms a step" in done.stdout
    assert "own code: train.py" in done.stdout
    # The study of the whole program is made as ever.
    assert json.loads(next(out.glob("exec/*/summary.json")).read_text())["status"] == "done"


def fetched(address: str, part: str) -> str:
    """The answer of ``address`` once it holds ``part``."""
    answers = [""]

    def holds() -> bool:
        with urlopen(address, timeout=60) as answer:
            answers[0] = str(answer.read(), "utf-8")
        return part in answers[0]

    wait_for(holds)
    return answers[0]


def wait_for(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("not within a minute")


PROGRAM = """
import os, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step, (batch,) in enumerate(DataLoader(TensorDataset(torch.ones(300, 8)), batch_size=2)):
    time.sleep(0.005)
    model(batch).pow(2).mean().backward()
    optimizer.step()
    if step == 140:
        open("{done}", "w").close()
        while not os.path.exists("{go_on}"):
            time.sleep(0.02)
"""
