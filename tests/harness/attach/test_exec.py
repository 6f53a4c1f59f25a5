"""``harness exec`` on programs that know nothing of it: what it records, and that it changes nothing."""

from __future__ import annotations

import json
import marshal
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from harness.attach.frames import ProcessFacts
from harness.attach.study import make_study
from harness.commands.api import load
from harness.explain.ledger import measure
from harness.explain.replay.attribution import without_stages
from harness.explain.replay.pipeline import in_order
from harness.explain.replay.predict import Replays
from harness.explain.replay.recording import record
from harness.explain.replay.simulate import simulate
from harness.judge.predictions import bar_of
from harness.scenario.edits import parse_edits
from harness.show.build import keep_derived
from harness.study.contract import PHASES, STAGES
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests import warm
from tests.commands import ROOT, Done, harness, harness_and_program
from tests.harness.attach.running import PROGRAMS, Recorded, chosen, losses, record_all

pytestmark = pytest.mark.slow
nightly = pytest.mark.nightly


def program(name: str, *words: object) -> list[str]:
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, words)]


def forked(name: str, *words: object) -> list[str]:
    """For a shell: the program as a fork."""
    if warm.ADDRESS not in os.environ:
        warm.starter.share()
    return [sys.executable, "-SE", warm.__file__, *program(name, *words)[1:]]


def alone(command: Sequence[str], *, cold: bool = False, **changes: Any) -> subprocess.CompletedProcess[str]:
    popen = subprocess.Popen if cold else warm.Popen
    with popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **changes) as process:
        out, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def attached(out: Path, command: Sequence[str], *options: str, cold: bool = False) -> Done:
    words = ("exec", "--out", str(out), *options, "--", *command)
    return harness_and_program(*words, cold=cold, PYTHONPATH=str(ROOT))


def recorded(folder: Path, program: str, seen: Recorded | None = None) -> tuple[StudyFolder, list[str]]:
    """The study of a program without a report, and what the program printed. ``seen``: it ran with others."""
    found = seen or record_all(folder / "seen", [program])
    ran, study, raw = found.ran[program], StudyFolder(folder / "study"), folder / "raw"
    assert ran.code == 0, ran.lines
    raw.mkdir(parents=True)
    others = {str(one.pid) for one in found.ran.values()} - {str(ran.pid)}
    for path in found.raw.iterdir():
        if path.name.partition("-")[0] not in others:
            (raw / path.name).hardlink_to(path)
    assert make_study(study, raw, [program], [], "2026-12-01T00:00:00Z").faults == ()
    for run in study.runs():
        keep_derived(study, run)
    return study, ran.lines


# What the tests below ask of the record; the rare ones are parameters.
USUAL = ["threads one --steps 40 --collate-ms 12", "threads first --steps 40", "threads two --steps 40", "epochs"]
USUAL += ["streams sampler 36"]
WAYS = ["copied", "one-shard", "shared", "slow-stream", "slow-rows"]
WAYS += [f"{way} 36" for way in ("left", "left-persistent", "left-inline", "one-batch")]
STREAMS = [f"streams {way}" for way in (*WAYS, "chosen 40", "chosen-inline 40")]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Recorded:
    programs = [*USUAL, *chosen(request, [*STREAMS, "on_device 40 15", "on_device 40 3"])]
    return record_all(tmp_path_factory.mktemp("seen"), programs)


def study_in(out: Path) -> StudyFolder:
    (path,) = (out / "exec").iterdir()
    return StudyFolder(path)


def details(out: Path) -> str:
    """What the report says of an arm in sentences, below its card."""
    return " ".join(json.loads(study_in(out).summary_json.read_text())["lone_arms"])


def rows_of(run: RunData) -> list[dict[str, Any]]:
    return [] if run.steps is None else run.steps.to_pylist()


def rows(study: StudyFolder) -> list[dict[str, Any]]:
    """Of all blocks, in their order, each step once: a block begins with the last ones of the block before."""
    found: dict[int, dict[str, Any]] = {}
    for run in study.runs():
        for row in rows_of(run):
            found.setdefault(row["step"], row)
    return list(found.values())


def mean_ms(study: StudyFolder, column: str) -> float:
    values = [row[column] for row in rows(study) if not row["warmup"]]
    return sum(values) / len(values) / 1e6


def restarting_share_is_that_of(run: RunData, steps: Sequence[int]) -> bool:
    """True if the waits of these steps are what the run says of its loader's restarts."""
    measured = [row for row in rows_of(run) if not row["warmup"]]
    waited_ns = sum(row["fetch_ns"] for row in measured if row["step"] in steps)
    return run.record.facts.restarting_share == pytest.approx(
        waited_ns / sum(row["wall_ns"] for row in measured), abs=0.001
    )


def test_slow_data_is_found_in_its_stage_and_the_first_screen_says_what_was_timed(tmp_path: Path) -> None:
    command = program("plain", "--steps", 1000, "--workers", 2, "--collate-ms", 12)
    done = attached(tmp_path, command, "--warmup", "10", "--steps", "40")
    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path)
    assert len(losses(done.stdout.splitlines())) == len(rows(study)) == 50
    assert len(study.read_study().id) == 12
    (ledger,) = load(tmp_path / "exec").ledger
    assert ledger.steps == 40
    assert sum(ledger.phase_ms.values()) == pytest.approx(ledger.mean_step_ms)
    assert ledger.phase_ms["fetch"] == pytest.approx(mean_ms(study, "fetch_ns"), rel=0.05)  # blocks may differ in size
    assert {run.record.session for run in study.runs()} == {f"{study.read_study().id}.exec"}
    work = {name: mean_ms(study, f"work_{name}_ns") for name in ("read", "tokenize", "pack")}
    assert work.pop("pack") >= 12  # a sleep is never shorter
    assert max(work.values()) < 6
    assert mean_ms(study, "fetch_ns") > 0
    assert "Timed: fetch: DataLoader with 2 workers; forward: Net; backward; optimizer: AdamW." in details(tmp_path)
    assert "A step ends with the update of AdamW." in details(tmp_path)


def test_a_training_in_another_thread_is_recorded(seen: Recorded, tmp_path: Path) -> None:
    study, lines = recorded(tmp_path, USUAL[0], seen)
    assert losses(lines) == losses(alone(program("plain", "--steps", 40)).stdout.splitlines())
    assert len(rows(study)) >= 38  # the step of the first backward pass had begun before it was known
    assert mean_ms(study, "work_pack_ns") >= 12
    assert mean_ms(study, "exposed_pack_ns") >= 10
    assert min(mean_ms(study, f"{phase}_ns") for phase in ("fetch", "forward", "backward", "optimizer")) > 0


def test_the_main_thread_is_recorded_after_another_one_that_trained(seen: Recorded, tmp_path: Path) -> None:
    """A thread trained three steps and ended; those of the main thread were lost."""
    study, _ = recorded(tmp_path, USUAL[1], seen)
    steps = [sum(len(rows_of(run)) for run in study.runs() if run.record.arm == arm) for arm in ("script", "script-2")]
    assert steps[0] <= 3
    assert steps[1] >= 38


def test_a_second_thread_that_trains_is_named(seen: Recorded, tmp_path: Path) -> None:
    study, _ = recorded(tmp_path, USUAL[2], seen)
    assert len(rows(study)) >= 38
    assert any("trains as well; its steps are not recorded" in note for note in study.read_study().notes)


def test_every_rank_of_a_program_has_its_tables(tmp_path: Path) -> None:
    """Two processes that have their ranks as of torchrun: each is an arm, and all of its blocks are read."""
    words = shlex.join(forked("plain", "--steps", 40))
    both = f"RANK=0 WORLD_SIZE=2 {words} & RANK=1 WORLD_SIZE=2 {words}; code=$?; wait && exit $code"
    done = attached(tmp_path, ["sh", "-c", both])
    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path)
    assert [arm.name for arm in study.read_study().arms] == ["rank-0", "rank-1"]
    assert {run.record.status for run in study.runs()} == {"done"}
    for rank in ("rank-0", "rank-1"):
        runs = [run for run in study.runs() if run.record.arm == rank]
        assert {row["step"] for run in runs for row in rows_of(run)} == set(range(40))
        assert all(run.spans is not None and len(run.spans) for run in runs)


def test_the_exit_code_is_the_programs(tmp_path: Path) -> None:
    done = attached(tmp_path, program("plain", "--steps", 60, "--kill-at", 20))
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert " a step by the clock" in done.stdout
    assert study_in(tmp_path).read_study().notes[0] == f"the command ended with exit code {128 + signal.SIGKILL}"


ENDS = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), 2)"
LEAVES = "import os, time; os.fork() or [os.setsid(), os.close(1), os.close(2), time.sleep(60)]"
EMPTY = """
import torch
model = torch.nn.Linear(1, 1)
for batch in torch.utils.data.DataLoader([]):
    model(batch).sum().backward()
"""


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["no-such-program-anywhere"], 2, "exec: no-such-program-anywhere: program not found; commands run without a"),
        (["env", "-i", sys.executable, "-c", ""], 1, "nothing was attached: no Python process of the command imported"),
        ([sys.executable, "-c", "import torch, shutil, sys; shutil.rmtree(sys.argv[1])", "{out}"], 1,
         "nothing was recorded: the folder of the recording was removed while the command ran"),
        ([sys.executable, "-c", "import torch"], 1, "no training step was recorded: torch was imported, but no"),
        # Python says "can't open file" itself. That line, and one after Ctrl-C, blamed the environment.
        ([sys.executable, "{out}/train.py"], 2, "no training step was recorded: the command ended with exit code 2"),
        ([sys.executable, "-c", ENDS], 130, "no training step was recorded: the command was interrupted"),
        ([sys.executable, "-c", f"import torch; {ENDS}"], 130, "no training step was recorded: the command was interr"),
    ],
)  # fmt: skip
def test_why_nothing_was_recorded_is_true(tmp_path: Path, command: list[str], code: int, text: str) -> None:
    words = [word.replace("{out}", str(tmp_path / "out")) for word in command]
    done = attached(tmp_path / "out", words, cold=code == 2)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith(f"harness: {text}")


def test_a_program_whose_data_is_empty_took_no_step(tmp_path: Path) -> None:
    done = attached(tmp_path, [sys.executable, "-c", EMPTY])
    assert "the program ended before its first step was complete" in " ".join((done.stdout + done.stderr).split())


def test_a_process_that_is_left_behind_is_why_nothing_was_recorded(tmp_path: Path) -> None:
    daemon = attached(tmp_path, [sys.executable, "-c", LEAVES])
    assert daemon.returncode == 1
    (numbers,) = re.findall(r"left processes behind \(([\d, ]+)\)", daemon.stderr)
    for number in numbers.split(", "):
        os.kill(int(number), signal.SIGKILL)
    assert daemon.stderr.startswith("harness: nothing was recorded: the command ended and left")


def test_a_fault_of_ours_is_said_where_it_left_no_training_step(tmp_path: Path) -> None:
    (raw := tmp_path / "raw").mkdir()
    facts = {field.name: 0 for field in fields(ProcessFacts)} | {"python": "3.11.0", "torch": "2.11.0"}
    frames = [marshal.dumps(one, 2) for one in (("process", facts), ("note", ("fault", "...\nOSError: injected\n")))]
    (raw / "1-1.frames").write_bytes(b"".join(len(one).to_bytes(4, "little") + one for one in frames))
    done = harness("exec", "--recorded", str(raw), "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "harness: process 0: the recording stopped after an internal error (OSError: injected); "
        "the program continued. Please report the error",
        "harness: no training step was recorded: the recording stopped before the first one",
    ]


def test_files_of_the_user_with_names_of_ours_are_his(tmp_path: Path) -> None:
    """His trainer.py, profiles.py and harness/ are what his program imports, and his sitecustomize runs."""
    for name in ("trainer.py", "profiles.py", "sitecustomize.py"):
        (tmp_path / name).write_text(f"print('his {name}')\n")
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("print('his harness')\n")
    imports = "import trainer, profiles, harness\n"
    (tmp_path / "train.py").write_text(imports + (PROGRAMS / "by_hand.py").read_text())
    # With `python -m harness` a folder harness/ goes before ours, as Python puts the present folder first. With the
    # command `harness` it does not, nor with `python -P`.
    words = [sys.executable, "-P", "-m", "harness", "exec", "--out", "out", "--", sys.executable, "train.py", "12", "0"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = alone(words, cwd=tmp_path, env=environment)  # the program itself starts as a user's does
    assert done.returncode == 0, done.stderr
    his = ["his sitecustomize.py", "his trainer.py", "his profiles.py", "his harness"]
    assert [line for line in done.stdout.splitlines() if line.startswith("his")][-4:] == his
    assert len(rows(study_in(tmp_path / "out"))) == 12


@nightly
def test_a_loop_that_says_itself_what_it_does(tmp_path: Path) -> None:
    """In a folder with a trainer.py of the user's own."""
    (tmp_path / "trainer.py").write_text("raise RuntimeError('his')\n")
    done = alone(program("marked"), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    (marked, loader) = [
        rows(StudyFolder(tmp_path / line.split()[1]))
        for line in done.stdout.splitlines()
        if line.startswith(("recorded ", "loader "))
    ]
    assert len(marked) == len(loader) == 24
    assert min(row["fetch_ns"] for row in marked) >= 3e6  # a sleep is never shorter
    assert min(row["work_read_ns"] for row in marked) >= 3e6
    assert min(row["backward_ns"] for row in marked) > 0
    # Where a DataLoader serves the fetch that is marked, both are one wait for one batch.
    for row in loader[4:]:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"]
        assert row["samples"] == 4
        assert row["work_read_ns"] >= 4e6
        assert row["work_tokenize_ns"] >= 2e6
        assert sum(row[f"during_wait_{stage}_ns"] for stage in STAGES) == row["fetch_ns"]
    assert "harness.record: another harness.record block is active; end it first" in done.stdout


@pytest.mark.parametrize(
    ("program", "data_ms"), [("on_device 40 15", 15), pytest.param("on_device 40 3", 3, marks=nightly)]
)
def test_a_device_that_works_while_the_host_fetches_is_recorded_and_a_longer_fetch_leaves_it_idle(
    program: str, data_ms: int, seen: Recorded, tmp_path: Path
) -> None:
    """A device on paper has 6 ms of work a step, and the host is a step ahead: 3 ms of data are hidden, 15 are not."""
    study, _ = recorded(tmp_path, program, seen)
    runs = list(study.runs())
    assert {run.record.facts.device for run in runs} == {"a made-up device"}
    spans = [row for run in runs if run.spans is not None for row in run.spans.to_pylist()]
    lasts = [row["end_ns"] - row["start_ns"] for row in spans if (row["role"], row["name"]) == ("device", "norm")]
    assert median(lasts) / 1e6 == pytest.approx(3, abs=0.3)
    measured = [row for row in rows(study) if not row["warmup"]]
    idle_ms = median(sum(row[f"starved_{stage}_ns"] for stage in STAGES) for row in measured) / 1e6
    late_ms = median(max(0, row["fetch_ns"] - row["device_slack_ns"]) for row in measured) / 1e6
    fetch_ms, slack_ms, wall_ms = (
        median(row[name] for row in measured) / 1e6 for name in ("fetch_ns", "device_slack_ns", "wall_ns")
    )
    # What is queued when the fetch begins is all of it, but for what the device did while a slow host launched.
    assert idle_ms == pytest.approx(late_ms, abs=max(1.0, 0.1 * (fetch_ms - data_ms)))
    if data_ms == 15:
        assert 6 - (wall_ms - fetch_ms) - 0.5 <= slack_ms <= 6.5


def test_the_end_of_an_epoch_is_waited_for_like_a_batch_and_what_follows_the_last_update_is_in_no_step(
    seen: Recorded, tmp_path: Path
) -> None:
    study, _ = recorded(tmp_path, "epochs", seen)
    found, ends = rows(study), (10, 20, 30, 40)
    assert len(found) == 45
    for row in found:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"]
        assert min(row[f"{phase}_ns"] for phase in PHASES) >= 0
        for kind in ("exposed", "during_wait"):
            assert sum(row[f"{kind}_{stage}_ns"] for stage in STAGES) == row["fetch_ns"]
    assert all(row["during_wait_read_ns"] >= 30e6 for row in found if row["step"] in ends)
    assert all(row["samples"] == 1 for row in found)
    assert all(restarting_share_is_that_of(run, ends) for run in study.runs())


@pytest.mark.parametrize(
    ("program", "copies", "empty"),
    [(STREAMS[0], 2, None), (STREAMS[1], None, 3), pytest.param(STREAMS[2], 1, None, marks=nightly)],
)
def test_workers_that_make_equal_batches_are_seen_to_and_others_are_not(
    program: str, copies: int | None, empty: int | None, seen: Recorded, tmp_path: Path
) -> None:
    """Of a stream with one shard, one worker makes every batch."""
    runs = list(recorded(tmp_path, program, seen)[0].runs())
    facts = [run.record.facts for run in runs]
    assert {(one.copies, one.iterable, one.empty_workers) for one in facts} == {(copies, True, empty)}
    assert {one.idle_workers for run in runs if (one := measure(run)) is not None} == {empty or 0}


@pytest.mark.parametrize("program", [STREAMS[3], pytest.param(STREAMS[4], marks=nightly)])
def test_a_slow_worker_lacks_no_items(program: str, seen: Recorded, tmp_path: Path) -> None:
    """The loader does not keep the order of batches, so that one worker delivers all of them."""
    runs = list(recorded(tmp_path, program, seen)[0].runs())
    assert {run.record.facts.empty_workers for run in runs} == {None}
    assert {one.idle_workers for run in runs if (one := measure(run)) is not None} == {1}


@pytest.mark.parametrize("program", [*STREAMS[5:7], *(pytest.param(one, marks=nightly) for one in STREAMS[7:9])])
def test_a_loader_that_is_left_early_begins_anew_as_at_the_end_of_an_epoch(
    program: str, seen: Recorded, tmp_path: Path
) -> None:
    study, _ = recorded(tmp_path, program, seen)
    way = program.split()[1]
    runs = list(study.runs())
    numbers = {row["step"] for run in runs for row in rows_of(run) if not row["warmup"]}
    first = [number for number in numbers if way == "one-batch" or number % 6 == 0]
    assert sum(run.record.facts.epoch_ends or 0 for run in runs) == len(first) >= 5
    for run in runs:
        assert restarting_share_is_that_of(run, first)
        assert run.record.facts.persistent_workers is (way == "left-persistent")
        # Workers are started, or hand over what they had prepared.
        assert ((run.record.facts.iterating_share or 0) > 0.02) is (way != "left-inline")


def test_the_order_that_a_sampler_draws_is_reading_in_the_main_thread_and_no_transfer(
    seen: Recorded, tmp_path: Path
) -> None:
    study, _ = recorded(tmp_path, "streams sampler 36", seen)
    drawing = [row for row in rows(study) if row["work_read_ns"] >= 50e6]
    assert len(drawing) == 6  # of 6 steps each epoch
    assert all(row["during_wait_read_ns"] >= 50e6 for row in drawing)
    for facts in (run.record.facts for run in study.runs()):
        assert (facts.sampling_share or 0) >= 0.5 * (facts.restarting_share or 1)


@pytest.mark.parametrize("program", [STREAMS[9], pytest.param(STREAMS[10], marks=nightly)])
def test_a_sampler_that_chooses_each_item_slowly_is_reading_in_the_main_thread(
    program: str, seen: Recorded, tmp_path: Path
) -> None:
    """Each batch has two items; a worker reads each in 2 ms, while the main thread chooses each in 5 ms."""
    study, _ = recorded(tmp_path, program, seen)
    measured = [row for row in rows(study) if not row["warmup"]]
    assert all(row["during_wait_read_ns"] >= 10e6 for row in measured)
    assert all(row["work_read_ns"] >= 14e6 for row in measured)
    runs = list(study.runs())
    for run in runs:
        counted = [row for row in rows_of(run) if not row["warmup"]]
        wall_ns = sum(row["wall_ns"] for row in counted)
        assert (run.record.facts.sampling_share or 0) * wall_ns >= 9.9e6 * len(counted)
        # Removing the reading removes the sampler's 10 ms with the time of the items. What they hid of a worker's time
        # remains, and is more where a worker waits for a core.
        recording = record(run)
        replayed = simulate(in_order(recording, without_stages(["read"])), np.zeros((1, 1)))
        assert replayed.step_ms[0] <= recording.measured_ms - 3
    # Asked of the record, as the page predicts nothing at all where other processes took the cores.
    assert bar_of(parse_edits(["workers=8"]), runs, Replays(runs)) == "sampler"


def test_the_fetch_and_the_end_of_a_step_can_be_named(tmp_path: Path) -> None:
    """Both are what is found without being named, or not: an optimizer of another class ends a step of a GAN."""
    done = attached(tmp_path / "hand", program("by_hand", 30, 2), "--fetch", "get_batch")
    assert "Timed: fetch: get_batch; forward: Model; " in details(tmp_path / "hand"), done.stderr
    assert mean_ms(study_in(tmp_path / "hand"), "fetch_ns") >= 2
    done = attached(tmp_path / "gan", program("shapes", "gan"), "--step-ends", "Adam")
    assert "A step ends with the update of Adam." in details(tmp_path / "gan"), done.stderr
    assert len(rows(study_in(tmp_path / "gan"))) == 24


def test_names_that_the_program_does_not_have_are_said(tmp_path: Path) -> None:
    done = attached(tmp_path, program("by_hand", 12, 0), "--fetch", "no_such", "--step-ends", "Muon")
    assert done.returncode == 0
    assert "--fetch no_such: no such function when the first step began" in done.stderr
    assert "--step-ends: no optimizer of this class made an update; optimizers seen: SGD" in done.stderr
    done = attached(tmp_path, program("by_hand", 12, 0), "--fetch", "a b")
    line = "harness: exec: --fetch 'a b': allowed: get_batch, or module:get_batch\n"
    assert (done.returncode, done.stderr) == (2, line)
