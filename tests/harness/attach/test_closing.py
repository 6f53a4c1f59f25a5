"""``harness exec`` profiles three steps after the measured ones where a device's events leave much of them open."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.attach.agent import events as agent_events
from harness.attach.command import SHIM
from harness.commands.exec import PROFILE_STEPS
from harness.explain import bounds
from harness.explain.policy import LAUNCH_TAIL_NS, LIMIT_SHARE_MIN, SHORT_LAUNCHES_SHARE
from harness.explain.spans import Stretches
from harness.study.contract import PROFILED
from harness.study.run_data import RunData
from tests.harness.attach.running import agent_module
from tests.harness.attach.test_exec import attached, program, study_in
from tests.harness.attach.test_profile import rows
from tests.harness.explain.test_launch_bound import drawn

MS = 1_000_000
STEPS = 15
LAUNCH_BOUND = ("on_device", 30, 1, 4, 12)  # 30 steps: 4 ms of work that takes 12 ms to launch
MEASURED = ("--steps", str(STEPS), "--warmup", "4")
WARMUP = 1  # of the profiler


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options", "takes"),
    [
        (LAUNCH_BOUND, MEASURED, True),
        (LAUNCH_BOUND, (*MEASURED, "--profile", "none"), False),
        (LAUNCH_BOUND, ("--warmup", "4"), False),  # where the program ends is not known
        (("plain", "--steps", 30), MEASURED, False),  # on the CPU
    ],
)
def test_a_launch_bound_program_has_a_window_after_its_measured_steps(
    words: tuple[str | int, ...], options: tuple[str, ...], takes: bool, tmp_path: Path
) -> None:
    done = attached(tmp_path, program(str(words[0]), *words[1:]), *options)
    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path)
    record = study.read_study()
    runs = {(run.record.arm, run.record.block): run for run in study.runs()}
    window = runs.pop((f"script+{PROFILED}", 0), None)
    assert {run.record.status for run in runs.values()} == {"done"}
    measured = [row["step"] for run in runs.values() for row in rows(run) if not row["warmup"]]
    assert measured == sorted(set(measured))
    assert (window is not None) == takes
    if window is None:
        assert measured[-1] == (29 if "--steps" not in options else 4 + STEPS - 1)
        return
    assert measured == list(range(4, 4 + STEPS))
    assert (window.record.status, window.record.of) == ("done", "script")
    assert window.probes.torch_profiler is not None
    ((*_, first, last),) = window.probes.torch_profiler.windows
    assert (first, last) == (4 + STEPS + WARMUP, 4 + STEPS + WARMUP + PROFILE_STEPS - 1)
    assert all(row["warmup"] for row in rows(window))
    assert [row["step"] for row in rows(window)][-PROFILE_STEPS:] == list(range(first, last + 1))
    assert phases_of_profiled_steps(window, first, last) >= {"forward", "backward", "optimizer"}
    assert all(run.window is window for run in runs.values())
    assert any("after the measured ones" in note for note in record.notes)
    assert f"script+{PROFILED}" in done.stdout


def phases_of_profiled_steps(run: RunData, first: int, last: int) -> set[str]:
    """What the device did within the steps of the window."""
    steps = {row["step"]: row for row in rows(run)}
    since, until = steps[first]["start_ns"], steps[last]["start_ns"] + steps[last]["wall_ns"]
    assert run.spans is not None
    spans = [row for row in run.spans.to_pylist() if row["role"] == "launch"]
    return {row["name"] for row in spans if since <= row["start_ns"] and row["end_ns"] <= until}


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
    found: dict[str, object] = {}
    for name in ("device", "profiling"):
        for one in ast.parse((SHIM.parent / "agent" / f"{name}.py").read_text()).body:
            if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant):
                found[ast.unparse(one.targets[0])] = one.value.value
    assert (found["TAIL_NS"], found["MOST_MOMENTS"]) == (LAUNCH_TAIL_NS, SHORT_LAUNCHES_SHARE)
    assert (found["NOTICEABLE"], found["WARMUP"]) == (LIMIT_SHARE_MIN, WARMUP)
