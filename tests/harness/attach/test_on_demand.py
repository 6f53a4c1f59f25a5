"""``harness profile``: a running program is profiled, and what it measures of these steps is left out."""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness.attach import hooks
from harness.attach.agent.events import PROFILE_ASKED, PROFILE_DONE
from harness.attach.frames import append
from harness.attach.live import RecordedProgram
from harness.attach.on_demand import NotProfiled, alone, process_of, profile_torch
from harness.study.store import StudyFolder
from harness.study.traces.kineto import read_profile
from tests import warm
from tests.commands import ROOT, WARM, harness
from tests.harness.attach.running import Ran, Recorded, chosen, losses, record_all, run_all
from tests.harness.attach.test_exec import rows_of
from trainer.errors import InputError

PROGRAM = """
import os, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
while not os.path.exists("{enough}"):
    for (batch,) in DataLoader(TensorDataset(torch.ones(200, 8)), batch_size=2):
        time.sleep(0.01)
        model(batch).pow(2).mean().backward()
        optimizer.step()
    open("{begun}", "w").close()
"""


@contextmanager
def running(folder: Path) -> Iterator[Path]:
    """Meanwhile a program trains under `harness exec`; its study is whole afterwards."""
    script, begun, enough = folder / "train.py", folder / "begun", folder / "enough"
    script.write_text(PROGRAM.format(begun=begun, enough=enough))
    command = [sys.executable, "-m", "tests.commands", "exec", "--out", str(folder / "out")]
    command += ["--", sys.executable, str(script)]
    with warm.Popen(command, cwd=ROOT, env={**os.environ, WARM: "1"}) as process:
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
        torch_profile = harness("profile", str(study), "--steps", "4")
        (trace,) = study.glob("profiles/*/torch_profile.json.gz")
        names = read_profile(trace, 0)["name"].to_pylist()
        with mock.patch("harness.probes.profilers.torch_session.MAX_TRACE_BYTES", 10_000):
            cut = harness("profile", str(study))
        enough = threading.Timer(3, (tmp_path / "enough").touch)  # py-spy samples a program until its end
        enough.start()
        stacks = harness("profile", str(study), "--kind", "py-spy", "--seconds", "300")
        enough.join()
    assert (torch_profile.returncode, stacks.returncode) == (0, 0), torch_profile.stderr + stacks.stderr
    assert ", 4 steps of process" in torch_profile.stdout
    assert "aten::addmm" in torch_profile.stdout
    assert cut.returncode == 0
    assert ("was cut" in cut.stdout, "was cut" in torch_profile.stdout) == (True, False)
    assert sum(name.startswith("ProfilerStep#") for name in names) == 4
    (samples,) = study.glob("profiles/*/stacks.trace.json.gz")
    assert b"train.py" in gzip.decompress(samples.read_bytes())
    sampled = re.match(r"py-spy, ([\d.]+) s of process", stacks.stdout)
    assert sampled is not None
    assert 0 < float(sampled[1]) < 300
    measured = [not row["warmup"] for run in StudyFolder(study).runs() for row in rows_of(run)]
    left_out = measured[measured.index(True) :].count(False)
    # With the profiler's warm-up and at least one step under py-spy; at most a few seconds of steps of over 10 ms.
    assert 4 + 1 + 1 <= left_out <= 4_000
    assert any(measured)
    assert not (study / "raw").exists()


FAULTY = ["on_demand._accept!asks torch", "profiling._start!asks torch", "on_demand._answer!asks torch"]
at_night = pytest.mark.nightly


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Recorded:
    """Programs that ask for a profile of themselves."""
    programs = ["asks torch", "asks py-spy", *chosen(request, ["asks late", "asks own", *FAULTY])]
    return record_all(tmp_path_factory.mktemp("asked"), programs, {"warmup": 4, "segment_s": 60})


@pytest.fixture(scope="module")
def unasked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return losses(run_all(tmp_path_factory.mktemp("unasked") / "out", ["asks torch"], None)["asks torch"].lines)


def answer(ran: Ran) -> Any:
    """The answer that the program found at its end; None if there was none."""
    return ast.literal_eval(ran.lines[-1].removeprefix("answer: "))


@pytest.mark.slow
def test_a_program_answers_with_its_trace_and_trains_as_ever(asked: Recorded, unasked: list[str]) -> None:
    assert len(unasked) == 120
    assert all(losses(ran.lines) == unasked for ran in asked.ran.values())
    assert {ran.code for ran in asked.ran.values()} == {0}
    assert answer(asked.ran["asks torch"])["steps"] == 3
    assert answer(asked.ran["asks py-spy"]) == {"id": "1"}
    assert asked.ran["asks py-spy"].lines[-3] == "ready: True"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "why"),
    [("asks late", "too long"), pytest.param("asks own", "itself with torch's profiler", marks=at_night)],
)
def test_a_profile_that_does_not_come_about_is_answered_with_the_reason(
    asked: Recorded, program: str, why: str
) -> None:
    assert why in answer(asked.ran[program])["error"]


@pytest.mark.parametrize(
    ("plan", "thread", "owner", "steps", "why"),
    [
        ({}, None, 0, 100, None),
        ({}, None, 1, 3, "another user asked for it"),
        ({}, None, 0, 101, "at most 100 steps"),
        ({"measured_from": None}, None, 0, 3, "this program is profiled already"),
        ({"alternates": True}, None, 0, 3, "or measured against another one"),
        ({}, 7, 0, 3, "in its main thread"),
        ({}, 7, 0, 0, None),  # py-spy
        ({"most_steps": 1000}, None, 0, 3, "its ranks end together"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(
    plan: dict[str, Any], thread: int | None, owner: int, steps: int, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks._agent()
    from _harness_agent import boundaries, on_demand, record

    monkeypatch.setattr(boundaries, "measuring", boundaries._Measuring(**plan))
    monkeypatch.setattr(record, "training_thread", thread)
    monkeypatch.setattr(record, "ranks", lambda: (0, 2))
    found = on_demand._refusal(os.getuid() + owner, steps)
    assert found is None if why is None else why in found


@pytest.mark.parametrize("text", ['{"steps": ', "[]", '{"id": "1", "limit_s": NaN, "steps": 3}'])
def test_a_request_that_cannot_be_read_is_answered(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks._agent()
    from _harness_agent import on_demand, record

    monkeypatch.setattr(record, "_folder", str(tmp_path))
    (tmp_path / f"{os.getpid()}.{PROFILE_ASKED}").write_text(text)
    on_demand._accept(0)
    assert "cannot be read" in json.loads((tmp_path / f"{os.getpid()}.{PROFILE_DONE}").read_text())["error"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAULTY[:2], pytest.param(FAULTY[2], marks=at_night)])
def test_a_fault_in_answering_is_noted_and_one_of_the_profiler_is_the_answer(asked: Recorded, fault: str) -> None:
    ours = fault.startswith("on_demand.")
    assert any("injected" in line for line in asked.of(fault).noted("fault")) == ours
    assert ours or "injected" in answer(asked.ran[fault])["error"]


def program_in(folder: Path, *pids: int) -> RecordedProgram:
    for pid in pids:
        append(folder / f"{pid}-{pid}-1.frames", "events", [])
    return RecordedProgram(folder, (7, *pids))


def test_the_first_process_that_records_is_profiled_unless_another_is_named(tmp_path: Path) -> None:
    program = program_in(tmp_path, 8, 9)
    assert [process_of(program, target) for target in (None, "9", "7", str(tmp_path))] == [8, 9, 8, 8]
    append(tmp_path / "10-10-1.frames", "batch", (0, 0, (), 4))
    with pytest.raises(InputError, match="process 10 is a loader worker, which takes no steps: give 8"):
        process_of(program, "10")
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
