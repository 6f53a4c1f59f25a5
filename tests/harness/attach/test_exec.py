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
from harness.commands.api import load
from harness.explain.ledger import measure
from harness.explain.replay.attribution import without_stages
from harness.explain.replay.pipeline import in_order
from harness.explain.replay.predict import Replays
from harness.explain.replay.recording import record
from harness.explain.replay.simulate import simulate
from harness.judge.predictions import bar_of
from harness.scenario.edits import parse_edits
from harness.study.contract import PHASES, STAGES
from harness.study.store import StudyFolder
from tests import warm
from tests.commands import ROOT, Done, harness, harness_and_program

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"


def program(name: str, *words: object) -> list[str]:
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, words)]


def forked(name: str, *words: object) -> list[str]:
    """For a shell: the program as a fork, where the tests share what is forked."""
    return [sys.executable, "-SE", warm.__file__, *program(name, *words)[1:]]


def alone(command: Sequence[str], *, cold: bool = False, **changes: Any) -> subprocess.CompletedProcess[str]:
    popen = subprocess.Popen if cold else warm.Popen
    with popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **changes) as process:
        out, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def attached(out: Path, command: Sequence[str], *options: str, cold: bool = False) -> Done:
    words = ("exec", "--out", str(out), *options, "--", *command)
    return harness_and_program(*words, cold=cold, PYTHONPATH=str(ROOT))


def study_in(out: Path) -> StudyFolder:
    (path,) = (out / "exec").iterdir()
    return StudyFolder(path)


def details(out: Path) -> str:
    """What the report says of an arm in sentences, below its card."""
    return " ".join(json.loads(study_in(out).summary_json.read_text())["lone_arms"])


def losses(text: str) -> list[str]:
    """What the programs print of each step: its number, and every digit of its loss."""
    return [line for line in text.splitlines() if re.fullmatch(r"\d+ [-\w.]+", line)]


def rows(study: StudyFolder) -> list[dict[str, Any]]:
    """Of all blocks, in their order, each step once: a block begins with the last ones of the block before."""
    found: dict[int, dict[str, Any]] = {}
    for run in study.runs():
        for row in [] if run.steps is None else run.steps.to_pylist():
            found.setdefault(row["step"], row)
    return list(found.values())


def mean_ms(study: StudyFolder, column: str) -> float:
    values = [row[column] for row in rows(study) if not row["warmup"]]
    return sum(values) / len(values) / 1e6


def test_slow_data_is_found_in_its_stage_and_the_first_screen_says_what_was_timed(tmp_path: Path) -> None:
    workers, stage = 2, "pack"
    command = program("plain", "--steps", 1000, "--workers", workers, "--collate-ms", 12)
    done = attached(tmp_path, command, "--warmup", "10", "--steps", "70", cold=True)
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == len(rows(study_in(tmp_path))) == 80
    study = study_in(tmp_path)
    assert len(study.read_study().id) == 12
    (ledger,) = load(tmp_path / "exec").ledger
    assert ledger.steps == 70
    assert sum(ledger.phase_ms.values()) == pytest.approx(ledger.mean_step_ms)
    assert ledger.phase_ms["fetch"] == pytest.approx(mean_ms(study, "fetch_ns"), rel=0.05)  # blocks may differ in size
    assert {run.record.session for run in study.runs()} == {f"{study.read_study().id}.exec"}
    work = {name: mean_ms(study, f"work_{name}_ns") for name in ("read", "tokenize", "pack")}
    assert work[stage] >= 12  # a sleep is never shorter
    assert all(value < work[stage] / 2 for name, value in work.items() if name != stage)
    assert mean_ms(study, "fetch_ns") > 0
    assert "Timed: fetch: DataLoader with 2 workers; forward: Net; backward; optimizer: AdamW." in details(tmp_path)
    assert "A step ends with the update of AdamW." in details(tmp_path)


def test_a_training_in_another_thread_is_recorded(tmp_path: Path) -> None:
    """It was said that no Python process imported torch."""
    command = program("in_a_thread", "--steps", 50, "--collate-ms", 12)
    done = attached(tmp_path, command)
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == losses(alone(program("plain", "--steps", 50)).stdout)
    study = study_in(tmp_path)
    assert len(rows(study)) >= 48  # the step of the first backward pass had begun before it was known
    assert mean_ms(study, "work_pack_ns") >= 12
    assert mean_ms(study, "exposed_pack_ns") >= 10
    for phase in ("fetch_ns", "forward_ns", "backward_ns", "optimizer_ns"):
        assert mean_ms(study, phase) > 0


def test_the_main_thread_is_recorded_after_another_one_that_trained(tmp_path: Path) -> None:
    """A thread trained three steps and ended; the forty of the main thread were lost."""
    done = attached(tmp_path, program("in_a_thread_then_main", "--steps", 40))
    assert done.returncode == 0, done.stderr
    steps = {
        arm: sum(len(run.steps) for run in study_in(tmp_path).runs() if run.record.arm == arm and run.steps is not None)
        for arm in ("script", "script-2")
    }
    assert steps["script"] <= 3
    assert steps["script-2"] >= 38


def test_a_second_thread_that_trains_is_named(tmp_path: Path) -> None:
    done = attached(tmp_path, program("two_threads", "--steps", 40))
    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path)
    assert len(rows(study)) >= 38
    assert any("trains as well; its steps are not recorded" in note for note in study.read_study().notes)


def test_every_rank_of_a_program_has_its_tables(tmp_path: Path) -> None:
    """Two processes that are sentences their ranks as torchrun does: each is an arm, and all of its blocks are read."""
    words = shlex.join(forked("plain", "--steps", 40))
    both = f"RANK=0 WORLD_SIZE=2 {words} & RANK=1 WORLD_SIZE=2 {words}; code=$?; wait && exit $code"
    done = attached(tmp_path, ["sh", "-c", both])
    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path)
    assert [arm.name for arm in study.read_study().arms] == ["rank-0", "rank-1"]
    assert {run.record.status for run in study.runs()} == {"done"}
    for rank in ("rank-0", "rank-1"):
        runs = [run for run in study.runs() if run.record.arm == rank]
        steps = {row["step"] for run in runs if run.steps is not None for row in run.steps.to_pylist()}
        assert steps == set(range(40))
        assert all(run.spans is not None and len(run.spans) for run in runs)


def test_the_exit_code_is_the_programs(tmp_path: Path) -> None:
    done = attached(tmp_path, program("plain", "--steps", 60, "--kill-at", 20))
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert " a step by the clock" in done.stdout
    assert study_in(tmp_path).read_study().notes[0] == f"the command ended with exit code {128 + signal.SIGKILL}"


def test_nothing_attached_is_said_and_fails(tmp_path: Path) -> None:
    done = attached(tmp_path, ["env", "-i", sys.executable, "-c", "print('ran')"])
    assert (done.returncode, done.stdout) == (1, "ran\n")
    assert done.stderr.startswith("harness: nothing was attached: no Python process of the command imported torch")


def test_why_nothing_was_recorded_is_true(tmp_path: Path) -> None:
    """Each of them was said to be without a Python process that imported torch."""
    daemon = attached(tmp_path / "daemon", program("left_behind"))
    assert daemon.returncode == 1
    (numbers,) = re.findall(r"left processes behind \(([\d, ]+)\)", daemon.stderr)
    for number in numbers.split(", "):
        os.kill(int(number), signal.SIGKILL)
    assert daemon.stderr.startswith("harness: nothing was recorded: the command ended and left")

    removes = "import shutil, sys, torch; shutil.rmtree(sys.argv[1])"
    gone = attached(tmp_path / "gone", [sys.executable, "-c", removes, str(tmp_path / "gone")])
    assert gone.returncode == 1
    assert "nothing was recorded: the folder of the recording was removed while the command ran" in gone.stderr

    idle = attached(tmp_path / "idle", [sys.executable, "-c", "import torch"])
    assert idle.returncode == 1
    assert "no training step was recorded: torch was imported, but no backward pass" in idle.stderr


def test_a_command_that_failed_is_not_said_to_lack_torch(tmp_path: Path) -> None:
    """After python's own "can't open file", and after Ctrl-C, the line blamed the environment."""
    line = "harness: no training step was recorded: the command "
    missing = attached(tmp_path / "missing", [sys.executable, str(tmp_path / "train.py")], cold=True)
    assert missing.returncode == 2
    assert missing.stderr.splitlines()[1:] == [f"{line}ended with exit code 2"]
    for first in ("", "import torch; "):
        ends = f"{first}import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), 2)"
        stopped = attached(tmp_path / "stopped", [sys.executable, "-c", ends])
        assert (stopped.returncode, stopped.stderr) == (128 + signal.SIGINT, f"{line}was interrupted\n")


def test_a_fault_of_ours_is_said_where_it_left_no_training_step(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
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


def test_what_is_no_program_is_one_line(tmp_path: Path) -> None:
    done = attached(tmp_path, ["no-such-program-anywhere"])
    assert done.returncode == 2
    assert done.stderr == ("harness: exec: no-such-program-anywhere: program not found; commands run without a shell\n")
    assert list((tmp_path / "exec").iterdir()) == []


def test_files_of_the_user_with_names_of_ours_are_his(tmp_path: Path) -> None:
    """His trainer.py, profiles.py and harness/ are what his program imports, and his sitecustomize runs."""
    for name in ("trainer.py", "profiles.py", "sitecustomize.py"):
        (tmp_path / name).write_text(f"print('his {name}')\n")
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    shown = alone(
        [sys.executable, "-m", "harness", "exec", "--help"], cold=True, cwd=tmp_path, env={**os.environ, **environment}
    )
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stderr
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("print('his harness')\n")
    imports = "import trainer, profiles, harness\n"
    (tmp_path / "train.py").write_text(imports + (PROGRAMS / "by_hand.py").read_text())
    program = [sys.executable, "train.py", "12", "0"]
    # With `python -m harness` a folder harness/ goes before ours, as Python puts the present folder first. With the
    # command `harness` it does not, nor with `python -P`.
    words = [sys.executable, "-P", "-m", "harness", "exec", "--out", str(tmp_path / "out"), "--", *program]
    done = alone(words, cold=True, cwd=tmp_path, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    his = ["his sitecustomize.py", "his trainer.py", "his profiles.py", "his harness"]
    assert [line for line in done.stdout.splitlines() if line.startswith("his")][-4:] == his
    assert len(rows(study_in(tmp_path / "out"))) == 12


@pytest.mark.nightly
def test_a_loop_that_says_itself_what_it_does(tmp_path: Path) -> None:
    """In a folder with a trainer.py of the user's own."""
    (tmp_path / "trainer.py").write_text("raise RuntimeError('his')\n")
    done = alone(program("marked"), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    studies = [Path(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("recorded ")]
    for path in studies:
        table = rows(StudyFolder(tmp_path / path))
        assert len(table) == 24
        assert min(row["fetch_ns"] for row in table) >= 3e6  # a sleep is never shorter
        assert min(row["work_read_ns"] for row in table) >= 3e6
        assert min(row["backward_ns"] for row in table) > 0
    assert len(studies) == 1
    # Where a DataLoader serves the fetch that is marked, both are one wait for one batch.
    (path,) = [Path(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loader ")]
    table = rows(StudyFolder(tmp_path / path))
    assert len(table) == 24
    for row in table[4:]:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"]
        assert row["samples"] == 4
        assert row["work_read_ns"] >= 4e6
        assert row["work_tokenize_ns"] >= 2e6
        assert sum(row[f"during_wait_{stage}_ns"] for stage in STAGES) == row["fetch_ns"]
    assert "harness.record: another harness.record block is active; end it first" in done.stdout


def test_a_device_that_works_while_the_host_fetches_is_recorded_and_a_longer_fetch_leaves_it_idle(
    tmp_path: Path,
) -> None:
    """A device on paper has 6 ms of work a step, and the host is a step ahead: 3 ms of data are hidden, 15 are not."""
    for data_ms in (3, 15):
        done = attached(tmp_path / str(data_ms), program("on_device", 60, data_ms))
        assert done.returncode == 0, done.stderr
        study = study_in(tmp_path / str(data_ms))
        runs = list(study.runs())
        assert {run.record.facts.device for run in runs} == {"a made-up device"}
        spans = [row for run in runs if run.spans is not None for row in run.spans.to_pylist()]
        lasts = [row["end_ns"] - row["start_ns"] for row in spans if (row["role"], row["name"]) == ("device", "norm")]
        assert median(lasts) / 1e6 == pytest.approx(3, abs=0.3)
        sentences = details(tmp_path / str(data_ms))
        assert "No saving is predicted" in sentences
        assert "as fast" not in sentences
        measured = [row for row in rows(study) if not row["warmup"]]
        idle_ms, late_ms, fetch_ms, slack_ms, wall_ms = (
            median(values) / 1e6
            for values in (
                [sum(row[f"starved_{stage}_ns"] for stage in STAGES) for row in measured],
                [max(0, row["fetch_ns"] - row["device_slack_ns"]) for row in measured],
                [row["fetch_ns"] for row in measured],
                [row["device_slack_ns"] for row in measured],
                [row["wall_ns"] for row in measured],
            )
        )
        # What is queued when the fetch begins is all of it, but for what the device did while a slow host launched.
        assert idle_ms == pytest.approx(late_ms, abs=max(1.0, 0.1 * (fetch_ms - data_ms)))
        if data_ms == 15:
            assert 6 - (wall_ms - fetch_ms) - 0.5 <= slack_ms <= 6.5
            assert "while the host waits for data (read" in sentences


def test_the_end_of_an_epoch_is_waited_for_like_a_batch_and_what_follows_the_last_update_is_in_no_step(
    tmp_path: Path,
) -> None:
    done = attached(tmp_path, program("epochs"))
    assert done.returncode == 0, done.stderr
    found = rows(study_in(tmp_path))
    assert len(found) == 45
    for row in found:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"]
        assert min(row[f"{phase}_ns"] for phase in PHASES) >= 0
        for kind in ("exposed", "during_wait"):
            assert sum(row[f"{kind}_{stage}_ns"] for stage in STAGES) == row["fetch_ns"]
    ends = [row for row in found if row["step"] in (10, 20, 30, 40)]
    assert all(row["during_wait_read_ns"] >= 30e6 for row in ends)
    assert all(row["samples"] == 1 for row in found)
    assert "on average for the loader to restart at the ends of epochs" in details(tmp_path)
    for run in study_in(tmp_path).runs():
        assert run.steps is not None
        measured = [row for row in run.steps.to_pylist() if not row["warmup"]]
        waited_ns = sum(row["fetch_ns"] for row in measured if row["step"] in (10, 20, 30, 40))
        share = waited_ns / sum(row["wall_ns"] for row in measured)
        assert run.record.facts.restarting_share == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(
    ("way", "copies"),
    [("copied", 2), ("shared", 1), ("constant", None), ("one-shard", None), ("line-numbers", None)],
)
def test_workers_that_make_equal_batches_are_seen_to_and_others_are_not(
    way: str, copies: int | None, tmp_path: Path
) -> None:
    """Constant batches, and places of documents in shards, are equal in any case.

    Of a stream with one shard, one worker makes every batch.
    """
    done = attached(tmp_path, program("streams", way))
    assert done.returncode == 0, done.stderr
    runs = list(study_in(tmp_path).runs())
    assert {run.record.facts.copies for run in runs} == {copies}
    assert {run.record.facts.iterable for run in runs} == {True}
    ledgers = [one for run in runs if (one := measure(run)) is not None]
    assert {one.idle_workers for one in ledgers} == {3 if way == "one-shard" else 0}
    said = " ".join(done.stdout.split())
    assert ("made the same batches" in said) is (way == "copied")
    assert {run.record.facts.empty_workers for run in runs} == {3 if way == "one-shard" else None}
    assert ("3 of the 4 loader workers of script made no batch: the dataset" in said) is (way == "one-shard")


@pytest.mark.parametrize("way", ["slow-rows", "slow-stream"])
def test_of_a_slow_worker_only_the_fact_is_printed(way: str, tmp_path: Path) -> None:
    """The loader does not keep the order of batches, so that one worker delivers all of them. It lacks no items."""
    done = attached(tmp_path, program("streams", way))
    assert done.returncode == 0, done.stderr
    assert {run.record.facts.empty_workers for run in study_in(tmp_path).runs()} == {None}
    said = " ".join(done.stdout.split())
    assert "1 of the 2 loader workers of script delivered no batch in these steps." in said
    for wrong in ("no items", "too few items", "shards", "split its items"):
        assert wrong not in said


@pytest.mark.parametrize(
    "way",
    [
        "left",
        "left-persistent",
        *(pytest.param(way, marks=pytest.mark.nightly) for way in ("left-inline", "one-batch")),
    ],
)
def test_a_loader_that_is_left_early_begins_anew_as_at_the_end_of_an_epoch(way: str, tmp_path: Path) -> None:
    done = attached(tmp_path, program("streams", way, 36))
    assert done.returncode == 0, done.stderr
    runs = list(study_in(tmp_path).runs())
    numbers = {row["step"] for run in runs if run.steps for row in run.steps.to_pylist() if not row["warmup"]}
    first = [number for number in numbers if way == "one-batch" or number % 6 == 0]
    assert sum(run.record.facts.epoch_ends or 0 for run in runs) == len(first) >= 5
    for run in runs:
        assert run.steps is not None
        measured = [row for row in run.steps.to_pylist() if not row["warmup"]]
        waited_ns = sum(row["fetch_ns"] for row in measured if row["step"] in first)
        share = waited_ns / sum(row["wall_ns"] for row in measured)
        assert run.record.facts.restarting_share == pytest.approx(share, abs=0.001)
        assert run.record.facts.persistent_workers is (way == "left-persistent")
        # Workers are started, or hand over what they had prepared.
        assert ((run.record.facts.iterating_share or 0) > 0.02) is (way != "left-inline")
    text = details(tmp_path)
    assert "on average for the loader to restart at the ends of epochs" in text
    assert "No epoch ends in these steps" not in text
    assert ("persistent_workers=True" in text) is (way in ("left", "one-batch"))


def test_the_order_that_a_sampler_draws_is_reading_in_the_main_thread_and_no_transfer(tmp_path: Path) -> None:
    done = attached(tmp_path, program("streams", "sampler", 36))
    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path)
    drawing = [row for row in rows(study) if row["work_read_ns"] >= 50e6]
    assert len(drawing) == 6  # of 6 steps each epoch
    assert all(row["during_wait_read_ns"] >= 50e6 for row in drawing)
    for run in study.runs():
        facts = run.record.facts
        assert facts.sampling_share is not None
        assert facts.sampling_share >= 0.5 * (facts.restarting_share or 0)
    assert "persistent_workers" not in done.stdout
    assert "Its sampler takes" in details(tmp_path)


@pytest.mark.parametrize("way", ["chosen", "chosen-inline"])
def test_a_sampler_that_chooses_each_item_slowly_is_reading_in_the_main_thread(way: str, tmp_path: Path) -> None:
    """Each batch has two items; a worker reads each in 2 ms, while the main thread chooses each in 5 ms."""
    done = attached(tmp_path, program("streams", way, 40))
    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path)
    measured = [row for row in rows(study) if not row["warmup"]]
    assert all(row["during_wait_read_ns"] >= 10e6 for row in measured)
    assert all(row["work_read_ns"] >= 14e6 for row in measured)
    for run in study.runs():
        assert run.steps is not None
        counted = [row for row in run.steps.to_pylist() if not row["warmup"]]
        wall_ns = sum(row["wall_ns"] for row in counted)
        assert (run.record.facts.sampling_share or 0) * wall_ns >= 9.9e6 * len(counted)
        # Removing the reading removes the sampler's 10 ms with the time of the items. What they hid of a worker's time
        # remains, and is more where a worker waits for a core.
        recording = record(run)
        replayed = simulate(in_order(recording, without_stages(["read"])), np.zeros((1, 1)))
        assert replayed.step_ms[0] <= recording.measured_ms - 3
    assert "Its sampler takes" in details(tmp_path)
    # Asked of the record, as the page predicts nothing at all where other processes took the cores.
    runs = list(study.runs())
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
    assert (done.returncode, done.stderr) == (
        2,
        "harness: exec: --fetch 'a b': allowed: get_batch, or module:get_batch\n",
    )


def test_a_program_whose_data_is_empty_took_no_step(tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for batch in DataLoader([]):\n"
        "    model(batch).sum().backward()\n"
        "    optimizer.step()\n"
    )
    done = attached(tmp_path, [sys.executable, "-c", code])
    assert "the program ended before its first step was complete" in " ".join((done.stdout + done.stderr).split())
