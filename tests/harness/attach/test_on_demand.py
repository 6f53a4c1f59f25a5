"""``harness profile``: a running program is profiled, and what it measures of these steps is left out."""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness.attach.agent.events import PROFILE_ASKED, PROFILE_DONE
from harness.attach.frames import read
from harness.attach.live import RecordedProgram
from harness.attach.on_demand import NotProfiled, alone, process_of, profile_torch
from harness.study.store import StudyFolder
from harness.study.traces.kineto import read_profile
from tests.commands import Done, harness
from tests.harness.attach.running import PROGRAMS, Ran, losses, run_all
from trainer.errors import InputError

PROGRAM = """
import os, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
while not os.path.exists("{enough}"):
    for (batch,) in DataLoader(TensorDataset(torch.ones(400, 8)), batch_size=2):
        time.sleep(0.005)
        model(batch).pow(2).mean().backward()
        optimizer.step()
    open("{begun}", "w").close()
"""


@contextmanager
def running(folder: Path, *words: str) -> Iterator[Path]:
    """Meanwhile a program trains under `harness exec` with ``words``; its study is whole afterwards."""
    script, begun, enough = folder / "train.py", folder / "begun", folder / "enough"
    script.write_text(PROGRAM.format(begun=begun, enough=enough))
    command = [sys.executable, "-m", "harness", "exec", "--out", str(folder / "out"), *words]
    command += ["--", sys.executable, str(script)]
    with subprocess.Popen(command, cwd=PROGRAMS.parents[3], stdout=subprocess.DEVNULL) as process:
        try:
            while not begun.exists() and process.poll() is None:
                time.sleep(0.05)
            (study,) = (folder / "out").glob("exec/*")
            yield study
        finally:
            enough.touch()
    assert process.returncode == 0


@pytest.mark.slow
def test_a_running_program_is_profiled_and_its_profiled_steps_are_not_measured(tmp_path: Path) -> None:
    with running(tmp_path) as study:
        torch_profile: Done = harness("profile", str(study), "--steps", "4")
        stacks: Done = harness("profile", str(study), "--kind", "py-spy", "--seconds", "1")
        (trace,) = study.glob("profiles/*/torch_profile.json.gz")
        with mock.patch("harness.probes.profilers.torch_session.MAX_TRACE_BYTES", 10_000):
            cut: Done = harness("profile", str(study))
    assert (torch_profile.returncode, stacks.returncode) == (0, 0), torch_profile.stderr + stacks.stderr
    assert ", 4 steps of process" in torch_profile.stdout
    assert "aten::addmm" in torch_profile.stdout
    assert cut.returncode == 0
    assert ("was cut" in cut.stdout, "was cut" in torch_profile.stdout) == (True, False)
    names = read_profile(trace, 0)["name"].to_pylist()
    assert sum(name.startswith("ProfilerStep#") for name in names) == 4
    (samples,) = study.glob("profiles/*/stacks.trace.json.gz")
    assert b"train.py" in gzip.decompress(samples.read_bytes())
    left_out = 0
    for run in StudyFolder(study).runs():
        assert run.steps is not None
        measured = [not warmup for warmup in run.steps["warmup"].to_pylist()]
        left_out += measured[measured.index(True) :].count(False)
    # With the profiler's warm-up and at least one step under py-spy; at most a few seconds of steps of over 5 ms.
    assert 4 + 1 + 1 <= left_out <= 4_000
    assert left_out < sum(len(run.steps) for run in StudyFolder(study).runs() if run.steps is not None) / 2
    assert not (study / "raw").exists()


FAULTY = ("on_demand._accept!asks torch", "on_demand._answer!asks torch", "profiling._start!asks torch")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("raw") / "raw"


@pytest.fixture(scope="module")
def asked(raw: Path) -> dict[str, Ran]:
    """Programs that ask for a profile of themselves; beside each its losses without the agent."""
    names = [
        f"asks {how}"
        for how in (
            "torch",
            "py-spy",
            "late",
            "nan",
            "many",
            "threads",
            "ranks",
            "malformed",
            "no-object",
            "other-user",
            "own",
        )
    ]
    return run_all(raw.parent / "out", [*names, *FAULTY], raw, {"warmup": 4, "segment_s": 60}, cold=False)


@pytest.fixture(scope="module")
def unasked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return losses(run_all(tmp_path_factory.mktemp("unasked") / "out", ["asks torch"], None)["asks torch"].lines)


def answer(ran: Ran) -> Any:
    """The answer that the program found at its end; None if there was none."""
    return ast.literal_eval(ran.lines[-1].removeprefix("answer: "))


@pytest.mark.slow
def test_a_program_answers_with_its_trace_and_trains_as_ever(asked: dict[str, Ran], unasked: list[str]) -> None:
    assert len(unasked) == 120
    assert all(losses(ran.lines) == unasked for ran in asked.values())
    assert {ran.code for ran in asked.values()} == {0}
    assert answer(asked["asks torch"])["steps"] == 3
    assert answer(asked["asks py-spy"]) == {"id": "1"}
    assert asked["asks py-spy"].lines[-3] == "ready: True"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("malformed", "cannot be read"),
        ("no-object", "cannot be read"),
        ("nan", "cannot be read"),
        ("many", "at most 100"),
        ("other-user", "another user"),
        ("late", "too long"),
        ("threads", "in its main thread"),
        ("ranks", "its ranks end together"),
        ("own", "itself with torch's profiler"),
    ],
)
def test_a_request_that_cannot_be_met_is_answered_with_the_reason(asked: dict[str, Ran], how: str, why: str) -> None:
    assert why in answer(asked[f"asks {how}"])["error"]


@pytest.mark.slow
def test_a_fault_of_the_profiler_is_the_answer(asked: dict[str, Ran]) -> None:
    assert "injected" in answer(asked["profiling._start!asks torch"])["error"]


@pytest.mark.slow
def test_a_program_that_ends_is_sampled_until_its_end(tmp_path: Path) -> None:
    with running(tmp_path) as study:
        enough = threading.Timer(3, (tmp_path / "enough").touch)
        enough.start()
        stacks: Done = harness("profile", str(study), "--kind", "py-spy", "--seconds", "300")
        enough.join()
    assert stacks.returncode == 0, stacks.stderr
    sampled = re.match(r"py-spy, ([\d.]+) s of process", stacks.stdout)
    assert sampled is not None
    assert 0 < float(sampled[1]) < 300
    assert list(study.glob("profiles/*/stacks.trace.json.gz"))


@pytest.mark.slow
def test_a_fault_in_answering_is_noted(asked: dict[str, Ran], raw: Path) -> None:
    faults = {process.process.pid: process.noted("fault") for process in read(raw)}
    noted = {name for name, ran in asked.items() if any("injected" in line for line in faults[ran.pid])}
    assert noted == {name for name in FAULTY if name.startswith("on_demand.")}


def program_in(folder: Path, *pids: int) -> RecordedProgram:
    for pid in pids:
        (folder / f"{pid}-{pid}-1.frames").touch()
    return RecordedProgram(folder, (7, *pids))


def test_the_first_process_that_records_is_profiled_unless_another_is_named(tmp_path: Path) -> None:
    program = program_in(tmp_path, 8, 9)
    assert [process_of(program, target) for target in (None, "9", "7", str(tmp_path))] == [8, 9, 8, 8]
    with pytest.raises(InputError, match="no process"):
        process_of(RecordedProgram(tmp_path, (7,)), "7")


def test_a_program_that_does_not_answer_is_given_up_and_not_asked_any_more(tmp_path: Path) -> None:
    program = program_in(tmp_path)
    with pytest.raises(NotProfiled, match=r"within 0\.3 s"), alone(program, os.getpid()):
        profile_torch(program, os.getpid(), 3, tmp_path / "to", 0.3)
    assert not list(tmp_path.glob(f"*{PROFILE_ASKED}"))


def test_one_command_asks_at_a_time(tmp_path: Path) -> None:
    program = program_in(tmp_path)
    (tmp_path / f"7.{PROFILE_ASKED}").touch()
    with alone(program, 7):
        with pytest.raises(NotProfiled, match="another"), alone(program, 7):
            pass
        assert (tmp_path / f"7.{PROFILE_ASKED}").exists()  # the request of the first
    with alone(program, 7), alone(program, 8):
        pass


def test_a_record_that_goes_ends_the_request(tmp_path: Path) -> None:
    with pytest.raises(NotProfiled, match="ended"), alone(program_in(tmp_path / "gone"), 7):
        pass


def test_a_program_that_ends_or_refuses_is_not_profiled(tmp_path: Path) -> None:
    with pytest.raises(NotProfiled, match="ended"):
        profile_torch(program_in(tmp_path), 2**22 + 1, 3, tmp_path / "to", 60)

    def refuse() -> None:
        asked = tmp_path / f"{os.getpid()}.{PROFILE_ASKED}"
        while not asked.exists():
            time.sleep(0.05)
        done, number = tmp_path / f"{os.getpid()}.{PROFILE_DONE}", json.loads(asked.read_text())["id"]
        done.write_text(json.dumps({"id": "another", "trace": "x", "steps": 3}))  # of an earlier request
        while done.exists():
            time.sleep(0.05)
        done.write_text(json.dumps({"id": number, "error": "no"}))

    refusing = threading.Thread(target=refuse)
    refusing.start()
    with pytest.raises(NotProfiled, match=r"no$"):
        profile_torch(program_in(tmp_path), os.getpid(), 3, tmp_path / "to", 60)
    refusing.join()


@pytest.mark.parametrize("words", [("--steps", "0"), ("--seconds", "nan"), ("--limit", "0")])
def test_a_number_that_cannot_be_is_refused_in_one_line(words: tuple[str, str]) -> None:
    done = harness("profile", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert words[0] in done.stderr
