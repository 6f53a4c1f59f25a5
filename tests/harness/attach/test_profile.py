"""``harness exec --profile``: what it records, that it measures none of that, and that it changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.attach import hooks, sampling
from harness.attach.frames import events
from harness.attach.profiled import ProfiledWindows, profiled_steps
from harness.attach.sampling import RECORD, sampled
from harness.probes.ledger.rows import STEP
from harness.show.timeline.model import read_sources
from harness.study.contract import PROFILED
from harness.study.run_data import RunData
from harness.study.traces import kineto
from harness.study.traces.py_spy import MARK
from tests.commands import harness
from tests.harness.attach.running import Ran, Recorded, chosen, constants, losses, record_all, run_all
from tests.harness.attach.test_exec import attached, program, rows_of, study_in

WITHOUT_PTRACE = Path(__file__).parents[1] / "probes" / "profilers" / "without_ptrace.py"
LOG_LEVEL = "KINETO_LOG_LEVEL"
SETTINGS = {"warmup": 4, "steps": None, "profile_steps": 3}
FIRST, LAST = 7, 9  # steps of the window: the watched ones are over by step 6, and the profiler warms up in that
# Its workers begin anew within the window. The next two end there.
PLAIN, SHORT, SHORTER = "plain --steps 24 --workers 1 --epoch 8", "plain --steps 9", "plain --steps 7"
EVALUATING = "plain --steps 24 --evaluate-every 9"  # the first time in the second step of the window
COMPILED = "compiled fullgraph"
ITSELF = {
    "profiles_itself early": "the program profiles itself with torch's profiler",
    "profiles_itself within": "the program started its own profiler",
    "profiles_itself late": None,
    "profiles_itself python": "the program profiles itself (sys.setprofile)",
}
# Functions of the agent that are made to fail, each in a run of its own.
FAULTS = [f"profiling._start!{PLAIN}", f"profiling._write!{PLAIN}", f"profiling.finish!{SHORT}"]
RARE = [
    COMPILED,
    "profiles_itself late",
    f"profiling._write!{SHORT}",
    *(
        f"profiling.{name}!{PLAIN}"
        for name in (
            "_torch_is_over", "_own_profiler", "_call", "abandon", "_realtime_minus_monotonic", "_over"
        )
    ),
]  # fmt: skip


def nightly(programs: list[str]) -> list[Any]:
    return [pytest.param(one, marks=pytest.mark.nightly) if one in RARE else one for one in programs]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Ran]:
    programs = [PLAIN, SHORT, SHORTER, EVALUATING, *chosen(request, [COMPILED, *ITSELF])]
    return run_all(tmp_path_factory.mktemp("plain") / "out", programs, None)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, plain: dict[str, Ran], request: pytest.FixtureRequest) -> Recorded:
    return record_all(tmp_path_factory.mktemp("seen"), [*plain, *chosen(request, [*FAULTS, *RARE[2:]])], SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly([PLAIN, SHORT, SHORTER, EVALUATING, COMPILED, *ITSELF]))
def test_no_loss_changes_and_no_graph_breaks(plain: dict[str, Ran], seen: Recorded, name: str) -> None:
    ran = seen.ran[name]
    assert (ran.code, plain[name].code) == (0, 0), ran.lines
    kept = [[line for line in one.lines if line[:1].isdigit() or "own" in line] for one in (ran, plain[name])]
    assert kept[0] == kept[1]
    assert kept[0]
    if name == COMPILED:
        assert ran.lines[-1].split(" frames ")[0] == plain[name].lines[-1].split(" frames ")[0]
    assert seen.of(name).noted("fault") == seen.of(name).noted("profile_fault") == []


@pytest.mark.slow
def test_the_window_is_what_was_asked_for_or_what_the_program_left_of_it(seen: Recorded) -> None:
    whole, cut, ended, evaluating = map(seen.of, (PLAIN, SHORT, SHORTER, EVALUATING))
    windows = [one.noted("torch_profiler")[0][1][2:] for one in (whole, cut, evaluating)]
    assert windows == [(FIRST, LAST), (FIRST, FIRST + 1), (FIRST, FIRST + 1)]
    assert [profiled_steps(one) for one in (whole, cut, ended, evaluating)] == [LAST + 1, 9, 0, 9]
    for one, steps in ((whole, 3), (cut, 2), (evaluating, 2)):
        found = json.loads((seen.raw / one.noted("torch_profiler")[0][0]).read_text())["traceEvents"]
        assert sum(event["name"].startswith("ProfilerStep#") for event in found if event["ph"] == "X") == steps
    assert ProfiledWindows(seen.raw).missing(ended) == [
        "not profiled by torch.profiler: the program ended before torch.profiler was warm"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly([*ITSELF]))
def test_a_program_that_profiles_itself_keeps_its_profiler(seen: Recorded, name: str) -> None:
    one, why = seen.of(name), ITSELF[name]
    assert seen.ran[name].lines[-1] == "its own: True"
    assert one.noted("not_profiled") == ([] if why is None else [why])
    assert len(one.noted("torch_profiler")) == (1 if why is None else 0)
    # Ranks that were profiled and others measure the same steps: --steps ends them together.
    begun = [event for portion in events([one.path]) for event in portion if event[0] == STEP]
    assert [event[3] for event in begun if not event[5]] == list(range(LAST + 2, 24))


@pytest.mark.slow
@pytest.mark.parametrize("fault", nightly([*FAULTS, *RARE[2:]]))
def test_a_fault_of_profiling_changes_nothing_and_is_named(plain: dict[str, Ran], seen: Recorded, fault: str) -> None:
    """Training ends as it would have, to the last digit."""
    ran, one = seen.ran[fault], seen.of(fault)
    assert ran.code == 0, ran.lines
    assert losses(ran.lines) == losses(plain[fault.partition("!")[2]].lines)
    assert [line for line in ran.lines if "injected" in line] == []
    named = [*ProfiledWindows(seen.raw).missing(one), *one.noted("fault")]
    assert any("injected" in line for line in named), named


def saying_the_level(words: list[str]) -> list[str]:
    """The program, which prints Kineto's variable as the program has it."""
    code = (
        "import os, runpy, sys\nsys.argv = sys.argv[1:]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        f"finally: print('level', os.environ.get('{LOG_LEVEL}'))  # import torch"
    )
    return [sys.executable, "-c", code, *words[1:]]


@pytest.mark.slow
def test_operators_and_stacks_lie_in_the_phases_of_steps_that_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kineto's USDT lines stood between those of the program, whose own environment stays as it is."""
    monkeypatch.delenv(LOG_LEVEL, raising=False)
    options = ("--steps", "12", "--profile", "both", "--profile-seconds", "1")
    words = program("plain", "--steps", 100000, "--workers", 1, "--compute-ms", 4)
    done = attached(tmp_path, saying_the_level(words), *options, cold=True)  # below the launcher, where py-spy looks
    assert done.returncode == 0, done.stderr
    assert "level None" in done.stdout.splitlines()
    assert "USDT:" not in done.stderr
    study = study_in(tmp_path)
    runs = {run.record.arm: run for run in study.runs()}
    window, measured = runs[f"script+{PROFILED}"], runs["script"]
    assert (window.record.control, window.record.of) == (PROFILED, "script")
    found = {row["step"]: row["warmup"] for run in (measured, window) for row in rows_of(run)}  # some are in both
    first, *_ = steps = sorted(found.items())
    assert first == (0, True)
    assert [step for step, _ in steps] == list(range(len(steps)))
    warm = len(rows_of(window)) + 3  # the loader had so many batches in flight, and one more was received
    assert [step for step, warmup in steps if not warmup] == list(range(warm, warm + 12))
    sources = read_sources(window)
    assert sources.operators is not None
    lies_in = operators_in_phases(window, sources.operators.to_pylist())
    assert lies_in["aten::addmm"] == ["forward"] * 6
    assert lies_in["AddmmBackward0"] == ["backward"] * 6
    assert lies_in["aten::addcdiv_"] == ["optimizer"] * 12  # of four parameters
    assert f"profiled, not measured: script+{PROFILED}; " in done.stdout
    assert "a profiler slows what it records" in study.read_study().notes[0]
    page = study.summary_md.read_text()
    assert f"steps {FIRST} to {LAST}" in page
    assert "`aten::addmm`" in page
    assert "script" in json.loads(study.summary_json.read_text())["arms"]
    facts = window.probes.py_spy
    if facts is None:
        assert "py-spy: no permission to trace this process; fix: " in done.stderr
        assert "py_spy" in window.probes.failed
        return
    # However fast the machine is: those that began within py-spy's second, after the window of torch.profiler.
    begins = [row["start_ns"] for row in rows_of(window)]
    sampled = [place for place, begin in enumerate(begins) if facts.window[0] <= begin < facts.window[1]]
    assert facts.steps == len(sampled) > 1
    assert sampled[0] > LAST
    assert facts.window[1] - facts.window[0] >= facts.seconds * 1e9
    assert sources.stacks is not None
    stacks = [row["stack"] for row in sources.stacks.to_pylist() if row["role"] == "main"]
    assert sum(any("Net.forward" in frame for frame in stack) for stack in stacks) > 0.1 * len(stacks)
    assert {row["role"] for row in sources.stacks.to_pylist()} >= {"main", "loader-0"}
    assert "main thread: forward" in page


def operators_in_phases(run: RunData, operators: list[dict[str, Any]]) -> dict[str, list[str]]:
    """By operator: the phase of the main thread that holds each of its calls, as both clocks have it."""
    assert run.spans is not None
    phases = [row for row in run.spans.to_pylist() if row["role"] == "main"]
    tolerance_ns = 50_000
    found: dict[str, list[str]] = {}
    for event in operators:
        start, end = event["start_ns"] + tolerance_ns, event["start_ns"] + event["duration_ns"] - tolerance_ns
        within = [phase["name"] for phase in phases if phase["start_ns"] <= start and end <= phase["end_ns"]]
        found.setdefault(event["name"], []).extend(within or ["none"])
    return found


@pytest.mark.slow
@pytest.mark.nightly
def test_where_tracing_is_not_permitted_the_command_goes_on_and_the_remedy_is_said(tmp_path: Path) -> None:
    text = """if True:
        import subprocess, sys
        from pathlib import Path
        from harness.attach.sampling import ASKED, sample_when_asked
        (Path(sys.argv[1]) / ASKED).touch()
        process = subprocess.Popen(["sleep", "60"])
        sample_when_asked(process, Path(sys.argv[1]), 1)
        print(process.poll())
        process.kill()
    """
    command = [sys.executable, str(WITHOUT_PTRACE), sys.executable, "-c", text, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ), check=False)
    if done.returncode == 1 and not done.stderr:
        pytest.skip("this kernel takes no filter of system calls")
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    assert (tmp_path / sampling.OVER).exists()
    found = sampled(tmp_path)
    assert found is not None
    assert found.failed == ("py_spy",)
    assert found.problems[0].startswith("py-spy: no permission to trace this process; fix: ")
    assert (tmp_path / RECORD).exists()


@pytest.mark.slow
@pytest.mark.nightly
def test_kineto_prints_what_the_user_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_LEVEL, "0")
    done = attached(tmp_path, saying_the_level(program("plain", "--steps", 24)), "--profile", cold=True)
    assert done.returncode == 0, done.stderr
    assert "level 0" in done.stdout.splitlines()
    assert "USDT:" in done.stderr


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--profile-steps 2", "--profile-steps goes with --profile torch or both"),
        ("--profile --profile-seconds 2", "--profile-seconds goes with --profile py-spy or both"),
        ("--profile --profile-steps 0", "--profile-steps 0: allowed: 1 to 100"),
        ("--profile both --profile-seconds 61", "--profile-seconds 61: allowed: 1 to 60"),
        ("--profile --controls a-a", "--profile cannot be combined with --against or --controls: profile each command"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options: str, line: str) -> None:
    done = harness("exec", *options.split(), "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"harness: exec: {line}")


def test_the_agent_names_things_as_they_are_read() -> None:
    """It runs in the user's process and imports nothing of ours: the names stand in it once more."""
    found = constants("profiling")
    assert [found[name] for name in ("HEADER", "OFFSET", "CUT")] == [kineto.HEADER, kineto.OFFSET, kineto.CUT]
    assert found["MARK"] == MARK


def test_the_limit_of_evaluation_batches_is_one_of_each_step_in_a_closing_window_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks._agent()
    from _harness_agent import boundaries, profiling

    monkeypatch.setattr(boundaries.measuring, "window_from", 5)
    monkeypatch.setattr(profiling.state, "torch_over", True)
    monkeypatch.setattr(profiling.state, "evaluating", profiling.MOST_EVALUATING)
    assert profiling._may_end(6)
    assert profiling.state.evaluating == 0
