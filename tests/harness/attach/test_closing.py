"""``harness exec`` profiles three steps after the measured ones where a device's events leave much of them open."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.attach.agent import events as agent_events
from harness.commands.exec import PROFILE_STEPS
from harness.explain import bounds
from harness.explain.policy import LAUNCH_TAIL_NS, LIMIT_SHARE_MIN, SHORT_LAUNCHES_SHARE
from harness.explain.spans import Stretches
from harness.study.contract import PROFILED
from tests.harness.attach.running import agent_module, constants
from tests.harness.attach.test_exec import attached, program, rows_of, study_in
from tests.harness.explain.test_launch_bound import drawn

MS = 1_000_000
STEPS = 15
LAUNCH_BOUND = program("on_device", 30, 1, 4, 12)  # 30 steps: 4 ms of work that takes 12 ms to launch
MEASURED = ("--steps", str(STEPS), "--warmup", "4")
WARMUP = 1  # of the profiler


@pytest.mark.slow
def test_a_launch_bound_program_has_a_window_after_its_measured_steps(tmp_path: Path) -> None:
    done = attached(tmp_path, LAUNCH_BOUND, *MEASURED)
    assert done.returncode == 0, done.stderr
    runs = {(run.record.arm, run.record.block): run for run in study_in(tmp_path).runs()}
    window = runs.pop((f"script+{PROFILED}", 0))
    measured = [row["step"] for run in runs.values() for row in rows_of(run) if not row["warmup"]]
    assert measured == list(range(4, 4 + STEPS))
    assert {run.record.status for run in (*runs.values(), window)} == {"done"}
    assert window.record.of == "script"
    assert window.probes.torch_profiler is not None
    ((*_, first, last),) = window.probes.torch_profiler.windows
    assert (first, last) == (4 + STEPS + WARMUP, 4 + STEPS + WARMUP + PROFILE_STEPS - 1)
    table = rows_of(window)
    assert all(row["warmup"] for row in table)
    profiled = table[-PROFILE_STEPS:]
    assert [row["step"] for row in profiled] == list(range(first, last + 1))
    since, until = profiled[0]["start_ns"], profiled[-1]["start_ns"] + profiled[-1]["wall_ns"]
    assert window.spans is not None
    launches = [row for row in window.spans.to_pylist() if row["role"] == "launch"]
    inside = {row["name"] for row in launches if since <= row["start_ns"] and row["end_ns"] <= until}
    assert inside >= {"forward", "backward", "optimizer"}
    assert all(run.window is window for run in runs.values())
    assert any("after the measured ones" in note for note in study_in(tmp_path).read_study().notes)
    assert f"script+{PROFILED}" in done.stdout


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "options", "last"),
    [
        (LAUNCH_BOUND, (*MEASURED, "--profile", "none"), 4 + STEPS - 1),
        (LAUNCH_BOUND, ("--warmup", "4"), 29),  # where the program ends is not known
        (program("plain", "--steps", 30), MEASURED, 4 + STEPS - 1),  # on the CPU
    ],
)
def test_other_programs_have_no_window(words: list[str], options: tuple[str, ...], last: int, tmp_path: Path) -> None:
    done = attached(tmp_path, words, *options)
    assert done.returncode == 0, done.stderr
    runs = list(study_in(tmp_path).runs())
    assert {(run.record.arm, run.record.status) for run in runs} == {("script", "done")}
    measured = [row["step"] for run in runs for row in rows_of(run) if not row["warmup"]]
    assert measured == list(range(4, last + 1))


@pytest.mark.parametrize(
    "pieces",
    [
        [("forward", 0, 5, 0, 5.02), ("backward", 5, 9, 5.02, 9)],  # launch-bound
        [("forward", 0, 5, 0, 20), ("backward", 5, 9, 20, 40)],  # behind its host
        [("forward", 0, 5, 0, 8), ("backward", 8, 8.05, 8, 30)],  # a moment
        [("forward", 0.1 * k, 0.1 * k + 0.08, 0.1 * k, 0.1 * k + 0.085) for k in range(32)],  # moments that add up
        [("forward", 3, 5, 0, 6)],  # an event that counts before it was recorded
    ],
)
def test_the_agent_leaves_open_what_the_analysis_does(
    pieces: list[tuple[str, float, float, float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the user's process and imports nothing of ours: the rule stands in it once more."""
    monkeypatch.setitem(sys.modules, "_harness_agent", SimpleNamespace(guard=None, record=None))
    monkeypatch.setitem(sys.modules, "_harness_agent.events", agent_events)
    found = agent_module("device").Open(0)
    for _, launched, until, start, end in pieces:
        found.add(start * MS, end * MS, round(launched * MS), round(until * MS))
    whole = Stretches(np.array([0]), np.array([50 * MS]))
    work = bounds.device_work(drawn(*pieces), attached=True)
    expected_ns = bounds.per_step(whole, work.open)[0]
    assert found.share(50 * MS) * 50 * MS == pytest.approx(expected_ns, abs=1000)
    assert (found.share(50 * MS) > LIMIT_SHARE_MIN) == (expected_ns > LIMIT_SHARE_MIN * 50 * MS)


def test_the_agent_has_the_limits_of_the_analysis() -> None:
    found = constants("device", "profiling")
    names = ("TAIL_NS", "MOST_MOMENTS", "NOTICEABLE", "WARMUP")
    assert [found[name] for name in names] == [LAUNCH_TAIL_NS, SHORT_LAUNCHES_SHARE, LIMIT_SHARE_MIN, WARMUP]
