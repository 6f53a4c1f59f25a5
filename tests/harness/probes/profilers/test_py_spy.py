"""py-spy itself over a small trainer that knows where its time went (spy_program.py); and where it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from harness.explain.probes.samples import MAIN, WORKERS, explain, process_roles
from harness.machine.tracing import remedy
from harness.probes.ledger.recorders import BareRecorder
from harness.probes.profilers import spy_process
from harness.probes.profilers.py_spy import PySpy, PySpySettings
from harness.show.profile import tokenization_lines
from harness.study.run_data import PySpyRecord
from harness.study.traces.py_spy import clock_of, read_stacks
from trainer.errors import InputError

PROGRAM = Path(__file__).with_name("spy_program.py")
WITHOUT_PTRACE = Path(__file__).with_name("without_ptrace.py")
SETTINGS = {"rate_hz": 100, "seconds": 1.2, "native": False, "gil": False, "nonblocking": False}
SVG = "{http://www.w3.org/2000/svg}"


def slow(test):
    """It judges times of real processes: beside three others at low priority half of the samples came late."""
    return pytest.mark.alone(pytest.mark.slow(test))


class Ran:
    """What a run of the program left."""

    def __init__(self, folder):
        self.folder = folder
        truth = json.loads((folder / "truth.json").read_text())
        self.facts, self.problems, self.steps = truth["facts"], truth["problems"], truth["steps"]
        self.record = TypeAdapter(PySpyRecord).validate_python(self.facts) if self.facts else None
        self.children_left = truth["children_left"]
        names = ("pid", "role", "name", "start_ns", "end_ns")
        self.spans = pa.table(dict(zip(names, map(list, zip(*truth["spans"], strict=True)), strict=True)))

    def samples(self):
        return read_stacks(self.folder / "stacks.trace.json.gz", self.record, process_roles(self.spans.to_batches()))

    def report(self):
        return explain(self.samples(), self.spans, self.record)


def run(folder, *, workers=1, wrapper=(), **more):
    settings = SETTINGS | more.pop("settings", {})
    order = {"workers": workers, "settings": settings, **more}
    subprocess.run([*wrapper, sys.executable, PROGRAM, folder, json.dumps(order)], check=True, timeout=180)
    return Ran(folder)


@pytest.fixture(scope="module")
def with_workers(tmp_path_factory):
    return run(tmp_path_factory.mktemp("workers"), workers=2)


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    return run(tmp_path_factory.mktemp("inline"), workers=0)


def places(report, who):
    return {place.name: place for place in report.places if place.threads == who}


@slow
def test_phases_and_stages_are_spent_in_the_functions_that_fill_them(with_workers):
    assert with_workers.problems == []
    report = with_workers.report()
    main, workers = places(report, MAIN), places(report, WORKERS)
    assert "known_optimizer (spy_program.py)" in main["optimizer"].functions[0].name
    assert any("known_forward" in stack.name for stack in main["forward"].stacks)
    assert any("known_read" in stack.name for stack in workers["read"].stacks)
    assert any("known_pack" in stack.name for stack in workers["pack"].stacks)


@slow
def test_a_tokenization_heavy_run_names_the_tokenizer(with_workers, inline):
    (said,) = tokenization_lines(with_workers.report())
    assert "loader workers" in said
    assert "encode_batch (trainer/data/engines/libraries.py)" in said
    inside = places(inline.report(), MAIN)["fetch: tokenize"].functions[0].name
    assert (
        inside.removeprefix("Fast.") == "encode_batch (trainer/data/engines/libraries.py)"
    )  # Python 3.11: with its class


@slow
@pytest.mark.parametrize("which", ["with_workers", "inline"])
def test_samples_are_where_the_program_was_within_two_periods(which, request):
    ran = request.getfixturevalue(which)
    samples = ran.samples()
    clock = clock_of(samples)
    period_ns = 1e9 / ran.facts["rate_hz"]
    assert clock.error_ns < period_ns
    spans = [row for row in ran.spans.to_pylist() if row["role"] == "main"]
    checked = 0
    misses = []
    for row in samples.to_pylist():
        if row["role"] != "main":
            continue
        for name, function in (("forward", "known_forward"), ("optimizer", "known_optimizer")):
            if any(frame.startswith(f"{function} ") for frame in row["stack"]):
                own = [span for span in spans if span["name"] == name]
                away = min(max(span["start_ns"] - row["time_ns"], row["time_ns"] - span["end_ns"], 0) for span in own)
                misses.append(away)
                checked += 1
    assert checked > 20
    # Where py-spy waits for a core its samples come late, as do those of its clock marks.
    share = 0.95 if clock.agreeing == clock.edges else 0.9
    assert np.quantile(misses, share) < 2 * period_ns + clock.late_ns


@slow
def test_a_call_that_changes_nothing_is_met_as_often_as_it_lasts(inline):
    """Without a metronome, a sleeping single thread leaves no event and would hardly be counted."""
    start, end = inline.facts["window"]
    spans = inline.spans.to_pylist()
    slept = sum(
        min(s["end_ns"], end) - max(s["start_ns"], start)
        for s in spans
        if s["name"] == "optimizer" and start < s["end_ns"] and s["start_ns"] < end
    )
    assert inline.children_left == []
    optimizer = places(inline.report(), MAIN)["optimizer"]
    assert optimizer.whole.share == pytest.approx(slept / (end - start), abs=0.15)


@slow
def test_the_window_is_made_of_whole_steps_and_files_are_complete(with_workers):
    facts = with_workers.facts
    assert facts["window"][1] - facts["window"][0] >= 1.2e9
    assert 0 < facts["steps"] < with_workers.steps  # the others are the flame graph's
    assert all(end > start for start, end in facts["marks"])
    file = json.loads((with_workers.folder / "stacks.speedscope.json").read_text())
    assert [profile["name"].split()[0] for profile in file["profiles"]][:3] == ["main", "loader-0", "loader-1"]
    titles = [element.text for element in ElementTree.parse(with_workers.folder / "stacks.svg").iter(f"{SVG}title")]
    assert any("encode_batch (trainer/data/engines/libraries.py" in title for title in titles)
    assert any(title.startswith(f"loader-0 {process_of(with_workers, 'loader-0')} (") for title in titles)
    assert not any(title.startswith("process ") for title in titles)
    left = {path.name for path in with_workers.folder.iterdir()} - {"tokenizer.json", "truth.json"}
    assert left == {"stacks.svg", "stacks.speedscope.json", "stacks.trace.json.gz"}
    assert with_workers.children_left == []


def process_of(ran, role):
    return next(pid for pid, own in process_roles(ran.spans.to_batches()).items() if own == role)


@slow
@pytest.mark.nightly
@pytest.mark.parametrize("option", ["native", "gil", "nonblocking"])
def test_options_of_py_spy(tmp_path, option):
    ran = run(tmp_path, workers=1, settings={option: True, "seconds": 1.0})
    assert ran.problems == []
    stacks = ran.samples()["stack"].to_pylist()
    if option == "gil":  # the tokenizer lets go of it: a second may hold no sample of that
        held = Counter(frame.split()[0] for stack in stacks for frame in stack)
        assert held["known_read"] + held["known_pack"] > 0
        assert held["known_optimizer"] < held["known_forward"]  # it sleeps for twice as long as that runs
    else:
        assert places(ran.report(), WORKERS)["tokenize"].whole.samples > 0
    if option == "native":
        assert any("tokenizers" in frame and ".so" in frame for stack in stacks for frame in stack)


@slow
@pytest.mark.nightly
def test_workers_that_were_spawned_are_sampled_too(tmp_path):
    ran = run(tmp_path, workers=1, start_method="spawn", settings={"seconds": 1.0})
    assert ran.problems == []
    assert places(ran.report(), WORKERS)["tokenize"].whole.samples > 0


NOT_DUMPABLE = "this process is not dumpable"


@slow
@pytest.mark.parametrize("how", ["sandbox", pytest.param(NOT_DUMPABLE, marks=pytest.mark.nightly)])
def test_without_permission_the_fix_is_reported_and_the_run_goes_on(tmp_path, how):
    """The kernel itself refuses.

    A sandbox forbids ptrace: py-spy only learns that it may not suspend the process, and with --subprocesses not why.
    Or the program gives up being traceable, and the capability where it has it.
    """
    if how == "sandbox":
        wrapper = [sys.executable, str(WITHOUT_PTRACE)]
        if subprocess.run([*wrapper, "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
            pytest.skip("needs seccomp filters, on x86-64 or ARM64")
    else:
        wrapper = ["setpriv", "--bounding-set=-sys_ptrace"] if os.geteuid() == 0 else []
        if wrapper and shutil.which("setpriv") is None:
            pytest.skip("needs setpriv (util-linux) to give up a capability")
    ran = run(tmp_path, workers=1, refused=how == NOT_DUMPABLE, wrapper=wrapper, settings={"seconds": 0.5})
    (problem,) = ran.problems
    assert problem.startswith(
        f"py-spy: no permission to trace this process; fix: {remedy() if how == 'sandbox' else how}"
    )
    assert "\n" not in problem
    assert ran.facts == {}
    assert ran.steps > 0
    assert ran.children_left == []


STAND_IN = """#!/bin/sh
for output; do :; done
trap 'echo "[]" > "$output"; exit 0' INT
echo "Sampling process"
{then}
while :; do sleep 0.01; done
"""


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """The probe with a program in py-spy's place, which samples nothing; it leaves no process."""

    def use(then: str | None = ""):
        program = tmp_path / "py-spy"
        program.write_text(STAND_IN.replace("{then}", then or ""))
        program.chmod(0o700)
        monkeypatch.setattr(spy_process, "find_py_spy", lambda: None if then is None else str(program))
        return PySpy(PySpySettings(seconds=0.01), tmp_path / "run")

    place = Path(f"/proc/self/task/{os.getpid()}/children")
    before = place.read_text()
    yield use
    assert place.read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize(("then", "problem"), [
    (None, "py-spy: not found next to this Python or on PATH; fix: pip install 'py-spy>=0.4'"),
    ("kill -9 $$", "py-spy: ended by signal 9"),
])  # fmt: skip
def test_py_spy_that_is_missing_or_dies_costs_its_stacks_only(py_spy, tmp_path, then, problem):
    probe = py_spy(then)
    probe.run_window(iter(range(10**9)).__next__, BareRecorder())
    assert (probe.problems, probe.failed, probe.facts()) == ([problem], True, {})
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.slow
def test_what_goes_wrong_in_a_step_is_the_runs_own(py_spy):
    def next_step():
        raise InputError("data.corpus: it ended")

    probe = py_spy()
    with pytest.raises(InputError, match="it ended"):
        probe.run_window(next_step, BareRecorder())
    assert probe.problems == []


@pytest.mark.slow
def test_calibration_leaves_nothing(py_spy, tmp_path):
    probe = py_spy()
    for _ in range(2):
        probe.begin_repetition()
        probe.end_repetition()
    assert (probe.problems, (tmp_path / "run").exists()) == ([], False)


@pytest.mark.slow
def test_where_py_spy_cannot_be_started_its_metronome_ends(monkeypatch, tmp_path):
    started = []

    def start(*arguments, **settings):
        if started:
            raise OSError("no more processes")
        started.append(popen(*arguments, **settings))
        return started[0]

    popen = subprocess.Popen
    monkeypatch.setattr(spy_process, "find_py_spy", lambda: "py-spy")
    monkeypatch.setattr(spy_process.subprocess, "Popen", start)
    with pytest.raises(spy_process.SpyFailed, match="no more processes"):
        spy_process.SpyRecording([], tmp_path / "trace", metronome=True)
    assert started[0].poll() is not None
