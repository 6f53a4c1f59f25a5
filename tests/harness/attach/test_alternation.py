"""``harness exec --against`` and ``--controls``: commands as they are, in turns, as the arms of a study."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.attach.alternation import ALTERNATION_LOOK_S, AlternatingCommand, CommandFailed
from harness.attach.command import MARK, AgentSettings
from harness.attach.comparison import plan_against
from harness.explain.ledger import measure
from harness.judge.study import analyse
from harness.launch.channel import BudgetSpent, WaitLimits
from harness.launch.quiet import LoadCheck
from harness.machine.processes import descendants, read_process, with_variable
from harness.show.names import _command
from harness.study.records import ComparisonRecord
from harness.study.store import StudyFolder
from tests.commands import Done, fork_servers, harness
from tests.harness.attach.running import PROGRAMS, losses
from tests.harness.attach.test_exec import alone, forked, program, rows_of, study_in
from tests.harness.launch.running import alive, wait_for

LONG = 100_000  # steps: more than anybody takes
LIMITS = WaitLimits(300, 300)
slow = pytest.mark.slow


def test_the_baseline_has_an_a_a_control_and_both_have_the_controls_that_are_asked_for() -> None:
    alone_plan = plan_against(["b", "{x}"], None, ["ideal-data"])
    assert [(arm.name, arm.program) for arm in alone_plan.arms] == [
        ("script", ("b", "{x}")), ("script+ideal-data", ("b", "{x}"))
    ]  # fmt: skip
    assert alone_plan.comparisons == ()
    plan = plan_against(["b"], ["a", "w 2"], ["data-only"])
    assert [(arm.name, arm.program, arm.of) for arm in plan.arms] == [
        ("baseline", ("a", "w 2"), None),
        ("baseline+a-a", ("a", "w 2"), "baseline"),
        ("baseline+data-only", ("a", "w 2"), "baseline"),
        ("script", ("b",), None),
        ("script+data-only", ("b",), "script"),
    ]
    assert plan.comparisons == (ComparisonRecord("baseline", "script"),)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("python t.py --workers 0 --x", "python t.py --workers 2 --x", "--workers 2 instead of --workers 0"),
        ("python t.py --read 9 --x", "python t.py --read 2 --x -n 3", "--read 2 --x -n 3 instead of --read 9 --x"),
        ("python t.py", "python t.py --compile", "with --compile"),
        ("python t.py --compile", "python t.py", "without --compile"),
        ("python a.py", "python b.py", "b.py instead of a.py"),
        ("python a.py a.py", "python a.py", "without a.py"),
    ],
)
def test_a_change_is_named_by_the_words_in_which_the_commands_differ(before: str, after: str, words: str) -> None:
    assert _command(before, after) == words


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--against", ""], "exec: --against '': give a command"),
        (["--against", "a 'b"], 'exec: --against "a \'b": no closing quotation'),
        (["--controls", "doses"], "exec: --controls 'doses': allowed: a-a, ideal-data, data-only, dose, or all"),
        (["--controls", "all", "--repeats", "0"], "exec: --repeats 0: allowed: 1 to 1,000"),
        (["--repeats", "3"], "exec: --repeats needs --against or --controls"),
        (["--controls", "all", "--recorded", "."], "exec: --recorded runs nothing"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, options: list[str], line: str) -> None:
    words = [] if "--recorded" in options else [sys.executable, "-c", ""]
    done = harness("exec", "--out", str(tmp_path), *options, "--", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"harness: {line}")


@slow
@pytest.mark.nightly
def test_a_command_that_trains_each_batch_four_times_is_doubted(tmp_path: Path) -> None:
    """No loss of a program is recorded, so its batches are compared; what follows is held by judge/test_losses.py."""
    before = shlex.join(program("plain", "--steps", LONG, "--collate-ms", 8, "--epoch", 20))
    after = program("plain", "--steps", LONG, "--collate-ms", 2, "--epoch", 40, "--again", 4)
    options = ("--repeats", "1", "--steps", "20", "--warmup", "4")
    done = harness("exec", "--out", str(tmp_path), "--against", before, *options, "--", *after)
    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path)
    counts = {run.record.arm: run.record.facts.repeated_rows for run in study.runs() if run.record.block == 0}
    assert counts["script"] is not None
    assert counts["script"][:7] == (0, 0, 0, 4, 12, 24, 48)  # among 1 to 64 rows, 4 a batch
    assert set(counts["baseline"] or ()) == {0}  # in the second epoch as well
    epochs = {(run.record.arm, run.record.facts.epoch_steps) for run in study.runs() if run.record.control is None}
    assert epochs == {("baseline", 20.0), ("script", 40.0)}
    (compared,) = analyse(study.read_study(), list(study.runs())).compared
    assert "repeated data" in [one.kind for one in compared.measured.doubts]


@slow
def test_a_scenario_of_commands_in_turns(tmp_path: Path) -> None:
    """A worker takes the collation off the loop; both do what they do alone; nothing of them is left."""
    words = shlex.join(program("plain", "--steps", LONG, "--collate-ms", 8, "--compute-ms", 8))
    (tmp_path / "workers.yaml").write_text(f"""
name: workers
question: Do workers help?
command: {words} --workers {{workers}}
arms: {{none: {{workers: 0}}, one: {{workers: 1}}}}
controls: [a-a]
repeats: 1
steps: 40
""")
    scenario = str(tmp_path / "workers.yaml")
    assert harness("run", scenario, "--plan").stdout.splitlines()[-2] == "3 runs: 1 blocks x 3"
    done = harness("run", scenario, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "workers 1 instead of 0 (one): undecided" in " ".join(done.stdout.split())  # one block decides nothing
    (path,) = (tmp_path / "workers").iterdir()
    study = StudyFolder(path)
    record = study.read_study()
    assert (record.status, record.interleave) == ("done", "slices")
    assert [sorted(order) for order in record.order] == [["none", "none+a-a", "one"]]
    assert len(record.id) == 12
    for run in study.runs():
        assert run.record.session.startswith(f"{record.id}.0-")
        measured = [row["turn"] for row in rows_of(run) if not row["warmup"]]
        assert measured == [0] * 20 + [1] * 20
    (one,) = analyse(record, list(study.runs())).compared
    assert one.measured.measure == "steps/s"  # its batches hold no tokens
    assert one.measured.baseline_waits.step_ms >= 16
    assert not [found for found in one.confounds if found.kind in ("configuration", "fact")]
    by_itself = losses(alone(program("plain", "--steps", 30, "--workers", 1)).stdout.splitlines())
    assert losses((study.run("one", 0) / "log.txt").read_text().splitlines())[:30] == by_itself
    assert not list(study.path.rglob("raw"))
    resumed = harness("run", "--resume", str(path))
    message = f"harness: {path}: a study of commands is not resumed; run it again\n"
    assert (resumed.returncode, resumed.stderr) == (2, message)


@slow
@pytest.mark.nightly
def test_a_function_that_trains_is_called_beside_another(tmp_path: Path) -> None:
    """Under its own name, so that workers find its classes; what it was fed with and its code are known."""
    shutil.copy(PROGRAMS / "called.py", tmp_path)
    (tmp_path / "harness.py").write_text("mine = True\n")  # the user's own: found before any of ours
    (tmp_path / "called.yaml").write_text("""
name: called
question: Do workers help?
loop: called:train
base: {collate_ms: 4, workers: 0}
arms: {none: , one: {workers: 1}, wrong: {size: 3}}
repeats: 1
steps: 20
""")
    done = harness("run", "called.yaml", cwd=tmp_path)
    assert "called:train(workers, collate_ms=0) cannot be called: got an unexpected keyword argument" in done.stderr
    (path,) = (tmp_path / "results" / "called").iterdir()
    study = StudyFolder(path)
    runs = {run.record.arm: run.record for run in study.runs()}
    assert runs["none"].facts.program_fingerprint == runs["one"].facts.program_fingerprint is not None
    assert runs["one"].config["command"] == "called:train(collate_ms=4, workers=1)"
    assert {arm: record.facts.workers for arm, record in runs.items()} == {"none": 0, "one": 1, "wrong": None}
    log = (study.run("one", 0) / "log.txt").read_text()
    assert log.splitlines()[0] == f"{tmp_path / 'called.py'} True"


@slow
def test_a_command_and_its_controls(tmp_path: Path) -> None:
    inline = program("plain", "--steps", LONG, "--collate-ms", 10, "--compute-ms", 5)
    options = ("--controls", "ideal-data,data-only", "--repeats", "1", "--steps", "20", "--interleave", "runs")
    done = harness("exec", "--out", str(tmp_path), *options, "--", *inline)
    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path)
    found = {arm.name: arm for arm in analyse(study.read_study(), list(study.runs())).arms}
    ideal, alone_ms = found["script+ideal-data"].totals.phase_ms, found["script+data-only"].totals.phase_ms
    assert found["script"].totals.phase_ms["fetch"] >= 10
    assert ideal["fetch"] < 10  # With its data it would be longer, as a sleep is never shorter.
    assert ideal["forward"] >= 5
    assert alone_ms["fetch"] >= 10
    assert sum(value for name, value in alone_ms.items() if name != "fetch") < 5  # as above
    assert "(ideal-data) it is" in " ".join(done.stdout.split())


@slow
@pytest.mark.nightly
def test_doses_of_data_work_are_made_and_compared(tmp_path: Path) -> None:
    """The collation in a worker is made once, twice, three and five times beside 15 ms of compute.

    How well the slopes are found is measured by the campaign: python -m tests.campaigns attached_truth.controls.
    """
    worker = program("plain", "--steps", LONG, "--collate-ms", 5, "--compute-ms", 15, "--workers", 1)
    options = ("--controls", "dose", "--repeats", "1", "--steps", "20")
    done = harness("exec", "--out", str(tmp_path), *options, "--", *worker)
    assert done.returncode == 0, done.stderr
    assert "data work of script" in " ".join(done.stdout.split())
    study = study_in(tmp_path)
    (arm, *_) = analyse(study.read_study(), list(study.runs())).arms
    (found,) = arm.explained.doses
    assert None not in (found.local_slope, found.last_slope)
    assert [point.k for point in found.points] == [0, 1, 2, 4]
    # Sleeps are never shorter: a step lasts as long as its compute, or as its batch where that is longer.
    longest_ms = [max(15, (1 + point.k) * 5) for point in found.points]
    assert all(point.step_ms >= 0.9 * ms for point, ms in zip(found.points, longest_ms, strict=True))


def study_of(
    folder: Path, command: str, arms: dict[str, dict[str, object] | None], steps: int, **environment: str
) -> tuple[StudyFolder, Done]:
    """Of one block, without controls: each starts a process that imports torch, 4 s of CPU."""
    content = {"name": "few", "question": "?", "command": command, "arms": arms, "controls": [], "repeats": 1}
    (folder / "few.yaml").write_text(yaml.safe_dump({**content, "steps": steps}, width=10**6))
    done = harness("run", str(folder / "few.yaml"), "--out", str(folder), **environment)
    (path,) = (folder / "few").iterdir()
    return StudyFolder(path), done


@slow
def test_what_a_command_leaves_behind_goes_with_it_and_a_stray_world_size_is_no_rank(tmp_path: Path) -> None:
    """A shell script with something in the background, in a shell of a job of two tasks."""
    script = f"(setsid sleep 1000 &) ; sleep 1000 & {shlex.join(forked('plain', '--steps', LONG))}"
    study, done = study_of(tmp_path, shlex.join(["bash", "-c", script]), {"script": None}, 20, WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr
    assert [run.record.status for run in study.runs()] == ["done"]
    assert with_variable(MARK, str((study.run("script", 0) / "raw").absolute())) == []


@slow
@pytest.mark.nightly
def test_a_command_that_ends_early_is_measured_as_far_as_it_goes(tmp_path: Path) -> None:
    arms = {"long": {"steps": LONG}, "short": {"steps": 35}}
    study, done = study_of(tmp_path, f"{shlex.join(program('plain'))} --steps {{steps}}", arms, 60)
    assert done.returncode == 0, done.stderr
    note = "short ended before its 60 steps were measured: later blocks measure 20. For more, let it train longer"
    assert note in done.stderr
    assert note in study.read_study().notes
    ledgers = {run.record.arm: found for run in study.runs() if (found := measure(run)) is not None}
    assert set(ledgers) == {"long", "short"}
    assert {one.repetitions[0].steps for one in ledgers.values()} == {20}


@slow
def test_a_command_with_fewer_steps_than_can_be_compared_is_one_line(tmp_path: Path) -> None:
    options = ("--controls", "a-a", "--repeats", "3", "--steps", "60")
    done = harness("exec", "--out", str(tmp_path), *options, "--", *program("plain", "--steps", 12))
    assert done.returncode == 2
    assert "ended before 20 steps were measured" in done.stderr.splitlines()[-1]
    assert list((tmp_path / "exec").iterdir()) == []


@slow
def test_a_command_that_fails_in_its_repetitions_fails_alone_and_says_why(tmp_path: Path) -> None:
    arms = {"long": {"fail": -1}, "short": {"fail": 30}}
    command = f"{shlex.join(program('plain', '--steps', LONG))} --fail-at {{fail}}"
    study, done = study_of(tmp_path, command, arms, 60)
    assert done.returncode == 1
    assert "run short/0 failed: it ended with exit code 7 while in repetition 2" in done.stderr
    assert {run.record.arm: run.record.status for run in study.runs()} == {"long": "done", "short": "failed"}


@slow
def test_a_command_that_cannot_be_started_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadCheck, "notes", lambda _: pytest.fail("it waited for a program that does not exist"))
    options = ("--wait-until-quiet", "60", "--against", "no-such-program-anywhere")
    done = harness("exec", "--out", str(tmp_path), *options, "--", *program("plain"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("harness: exec: no-such-program-anywhere: program not found")
    assert list((tmp_path / "exec").iterdir()) == []


@slow
@pytest.mark.parametrize(
    ("options", "failed"),
    [
        (["--against", "{missing}"], {"baseline", "script"}),  # two commands, and baseline+a-a is one of them again
        (["--controls", "all"], {"script"}),
        (["--controls", "a-a", "--interleave", "runs"], {"script"}),
    ],
)
@pytest.mark.nightly
def test_a_command_that_cannot_start_is_one_failure_in_all_blocks(
    options: list[str], failed: set[str], tmp_path: Path
) -> None:
    missing = [sys.executable, str(tmp_path / "not_there.py")]
    words = [word.format(missing=shlex.join(missing)) for word in options]
    done = harness("exec", *words, "--repeats", "3", "--out", str(tmp_path / "out"), "--", *missing, "1")
    assert done.returncode == 1
    (path,) = (tmp_path / "out" / "exec").iterdir()
    runs = [run.record for run in StudyFolder(path).runs()]
    assert [run.block for run in runs] == [0] * len(failed)
    assert {run.of or run.arm for run in runs} == failed
    assert {run.status for run in runs} == {"failed"}
    assert len([line for line in done.stderr.splitlines() if " failed: " in line]) == len(failed)
    assert StudyFolder(path).read_study().blocks == 1


@slow
@pytest.mark.nightly
def test_a_start_that_fails_once_in_block_0_is_tried_once_more(tmp_path: Path) -> None:
    """As a port that is in use until an earlier run has let go of it."""
    script = f"mkdir {shlex.quote(str(tmp_path / 'tried'))} && exit 1; {shlex.join(forked('plain', '--steps', LONG))}"
    study, done = study_of(tmp_path, shlex.join(["bash", "-c", script]), {"script": None}, 20)
    assert done.returncode == 0, done.stderr
    assert [run.record.status for run in study.runs()] == ["done"]
    assert " failed: " not in done.stderr
    assert study.read_study().status == "done"


@slow
@pytest.mark.nightly
def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    """As torchrun's with a fixed port, whose A/A control is alive beside it."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        code = f"import socket; socket.create_server(('127.0.0.1', {held.getsockname()[1]}))"
        options = ("--controls", "a-a", "--repeats", "1", "--out", str(tmp_path))
        done = harness("exec", *options, "--", sys.executable, "-c", code)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "run script/0 failed" in line]
    assert "ddress already in use" in line
    assert "its port is in use, because the commands of a block run at the same time" in line
    assert line.endswith("(torchrun --standalone, accelerate launch --main_process_port 0), or --interleave runs")


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., AlternatingCommand]]:
    """Makes a command in turns, whose processes are gone after the test."""
    (tmp_path / "raw").mkdir()
    made: list[AlternatingCommand] = []

    def make(words: list[str], limits: WaitLimits = LIMITS, name: str = "the command") -> AlternatingCommand:
        places = tmp_path / "raw", tmp_path / "log", tmp_path / "gate"
        made.append(AlternatingCommand(words, *places, limits, name=name))
        return made[-1]

    with fork_servers.shared():
        yield make
    for one in made:
        one.kill()


def pid_of(one: AlternatingCommand) -> int:
    assert one._process is not None
    return one._process.pid


SLEEPS = "import time; print('loading', flush=True); time.sleep(1000)"
# Connects to the gate, twice where it is told so, and sends its first words after some seconds.
RANK = """if True:
    import json, os, socket, sys, time
    gate = json.load(open(os.environ["HARNESS_ATTACH"] + "/settings.json"))["gate"]
    mute, rank = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    if float(sys.argv[2]):
        mute.connect(gate)
        mute.close()
    rank.connect(gate)
    time.sleep(float(sys.argv[2]))
    rank.sendall(b'{"pid": 1, "rank": 0, "world": %s}\\n' % sys.argv[1].encode())
    time.sleep(1000)
"""


@slow
def test_all_processes_of_a_suspended_command_stand_still_and_go_with_it(command: Any) -> None:
    one = command(program("plain", "--steps", LONG, "--workers", 2))
    one.start(AgentSettings(warmup=5))
    one.suspend()
    pids = [pid_of(one), *descendants([pid_of(one)])]
    assert len(pids) >= 3  # the loop and its workers
    assert {found.state for pid in pids if (found := read_process(pid)) is not None} == {"T"}
    one.resume()
    one.take(0, 20)
    assert one.end() == 0
    assert all((found := read_process(pid)) is None or found.dead for pid in pids)


@slow
def test_a_command_that_is_killed_within_its_turn_is_named(command: Any) -> None:
    one = command(program("plain", "--steps", LONG))
    one.start(AgentSettings(warmup=5))
    os.kill(pid_of(one), signal.SIGKILL)
    with pytest.raises(CommandFailed, match="it ended with exit code -9 while in repetition 1; last output: "):
        one.take(0, 20)


@slow
@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (["-c", SLEEPS], "no message from any training process for 3 s while starting: process {pid} (main) is sl"),
        # One of two came: it was named as what holds the command, and a longer silence as the remedy.
        pytest.param(
            ["-c", RANK, "2", "0"],
            "only 1 of 2 ranks connected within 3 s while starting: process {pid} (main) is sleeping",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_command_that_says_nothing_is_given_up(words: list[str], begin: str, command: Any) -> None:
    one = command([sys.executable, *words], WaitLimits(3, 3))
    with pytest.raises(CommandFailed) as error:
        one.start(AgentSettings(warmup=5))
    one.kill()
    assert str(error.value).startswith(begin.format(pid=pid_of(one)))
    raised = "raise limits.start_s (a key of scenario files) if it is only slow"
    for part in ("; likely cause: ", "; fix: ", raised, *["last output: loading"] * (words[1] == SLEEPS)):
        assert part in str(error.value)
    assert one._process.returncode == -signal.SIGKILL


@slow
@pytest.mark.nightly
def test_a_rank_may_take_seconds_from_its_connection_to_its_first_words(command: Any) -> None:
    """It had no core for that long, and the whole comparison ended with "timed out". Another one says nothing."""
    one = command([sys.executable, "-c", RANK, "1", str(ALTERNATION_LOOK_S + 0.5)], WaitLimits(20, 20))
    one.start(AgentSettings(warmup=5))
    assert len(one._ranks) == 1


@slow
def test_a_command_whose_worker_never_comes_back_names_that_worker(command: Any) -> None:
    one = command(program("plain", "--steps", LONG, "--workers", 1), WaitLimits(120, 2))
    one.start(AgentSettings(warmup=5))
    worker = descendants([pid_of(one)])[-1]
    os.kill(worker, signal.SIGSTOP)
    with pytest.raises(
        CommandFailed, match=rf"no message .*: process {worker} \(loader-0\) is stopped; likely cause: it received"
    ):
        one.take(0, 1000)


@slow
def test_a_budget_ends_what_is_starting(command: Any) -> None:
    limits = WaitLimits(900, 900, time.monotonic_ns() + 2 * 10**9)
    one = command([sys.executable, "-c", SLEEPS], limits, "run a@head/0")
    with pytest.raises(BudgetSpent, match=r"run a@head/0 was starting: process \d+ \(main\) is sleeping"):
        one.start(AgentSettings(warmup=5))


@slow
def test_a_suspended_command_does_not_outlive_the_launcher(tmp_path: Path) -> None:
    """A launcher that is killed while the command stands still, which then could never end by itself: a shell, which
    ends with us as our child, and the program that it started, which nobody asked to.
    """
    (tmp_path / "raw").mkdir()
    words = ["bash", "-c", f"sleep 1000 & {shlex.join([sys.executable, '-c', RANK, '1', '0'])}; true"]
    code = f"""
import os, signal
from pathlib import Path
from harness.attach.command import AgentSettings
from harness.attach.alternation import AlternatingCommand
from harness.launch.channel import WaitLimits
from harness.machine.processes import descendants
folder = Path({str(tmp_path)!r})
one = AlternatingCommand({words!r}, folder / "raw", folder / "log", folder / "gate", WaitLimits(300, 300))
one.start(AgentSettings(warmup=5))
one.suspend()
print(one._process.pid, *descendants([one._process.pid]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) >= 3  # the shell, the program and what was started beside it
    wait_for(lambda: not any(map(alive, pids)))


@slow
@pytest.mark.nightly
def test_a_turn_on_a_device_lasts_until_the_device_has_done_what_it_was_given(tmp_path: Path) -> None:
    """The host takes next to no time, and waits for the device at every hundredth step: a turn holds its whole work."""
    before = shlex.join(program("on_device", LONG, 0, 12))
    options = ("--against", before, "--repeats", "1", "--steps", "40")
    done = harness("exec", "--out", str(tmp_path), *options, "--", *program("on_device", LONG, 0, 6))
    assert done.returncode == 0, done.stderr
    for run in study_in(tmp_path).runs():
        device_ms = 6 if run.record.arm == "script" else 12
        walls: dict[int, list[int]] = {}
        unmeasured: Counter[int] = Counter()
        for row in rows_of(run):
            if row["warmup"]:
                unmeasured[row["turn"]] += 1
            else:
                walls.setdefault(row["turn"], []).append(row["wall_ns"])
        assert len(walls) == 2
        # Turns have other numbers of steps, or what comes as regularly would be measured always, or never.
        assert [unmeasured[turn] for turn in walls] == [6 + 1, 1 + 3]  # six before the first turn
        log = (study_in(tmp_path).run(run.record.arm, run.record.block) / "log.txt").read_text()
        # Once before its turns, and before and after the measured steps of each.
        assert "others waited for the device 5 times" in log
        for turn in walls.values():
            assert sum(turn) >= 0.99 * len(turn) * device_ms * 1e6
