"""When a run has its closing window, and that it measures nothing: on a stream made up on paper and an emulated one."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from harness.explain.ledger import measure
from harness.explain.policy import LIMIT_SHARE_MIN
from harness.launch.channel import Heartbeat
from harness.launch.child import Run
from harness.launch.opener import OpenTraining
from harness.launch.probing import CLOSING_STEPS, CLOSING_WARMUP, OpenTime, open_ns, probes_of
from harness.launch.tables import RunTables
from harness.probes.ledger.recorders import StepRecorder
from harness.probes.probe import RunProbes
from harness.scenario.model import ProbesConfig
from harness.study.records import RunRecord
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.cuda_stream import Declared, record
from tests.harness.explain.test_profiled_window import SHAPES
from tests.studies import copy_code
from trainer import telemetry
from trainer.compute.build import build_compute
from trainer.compute.emulated import EmulatedCompute
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.loop import train
from trainer.telemetry import Blocked, Kernel

if TYPE_CHECKING:
    from trainer.data.loader import Batches
    from trainer.evaluate import Evaluator

MS = 1_000_000
ASKED = {"a full device": False}  # the others leave more than LIMIT_SHARE_MIN open
REPETITION = 8


def declared(**keys: Any) -> dict[str, Any]:
    return ProbesConfig.model_validate(keys, strict=True).model_dump(mode="json")


def of_device(run: RunData) -> tuple[list[Kernel], list[Blocked]]:
    """What a recorder would hold of the run's device."""
    assert run.spans is not None
    rows = run.spans.to_pylist()
    launches, works = ([row for row in rows if row["role"] == role] for role in ("launch", "device"))
    kernels = [
        Kernel(work["name"], launch["start_ns"], launch["end_ns"], work["start_ns"], work["end_ns"])
        for launch, work in zip(launches, works, strict=True)
    ]
    return kernels, [Blocked(row["name"], row["start_ns"], row["end_ns"]) for row in rows if row["role"] == "sync"]


@pytest.mark.parametrize("name", SHAPES)
def test_a_window_is_asked_for_by_the_rule_of_the_analysis(name: str) -> None:
    run = record(SHAPES[name]).run
    assert run.steps is not None
    measured = [row for row in run.steps.to_pylist() if not row["warmup"]]
    since_ns, until_ns = measured[0]["start_ns"], measured[-1]["start_ns"] + measured[-1]["wall_ns"]
    found = measure(run)
    assert found is not None
    open_ms = (found.device_launch_bound_ms or 0.0) + (found.device_open_ms or 0.0)
    kernels, blocking = of_device(run)
    assert open_ns(kernels, blocking, since_ns, until_ns) / len(measured) / MS == pytest.approx(open_ms, abs=0.001)
    time = OpenTime()
    time.add(kernels, blocking, since_ns, until_ns)
    assert time.noticeable == ASKED.get(name, True) == (open_ms > LIMIT_SHARE_MIN * found.mean_step_ms)


def test_a_host_that_is_a_step_ahead_asks_for_no_window() -> None:
    kernels = dict.fromkeys(("h2d", "forward", "backward", "norm", "optimizer"), (50, 5.0, 60.0))
    run = record(Declared(kernels, data_ms=1, check_finite=False)).run
    assert run.steps is not None
    starts = run.steps.column("start_ns").to_pylist()
    time = OpenTime()
    assert not time.noticeable  # nothing was measured
    time.add(*of_device(run), starts[5], starts[-1])
    assert not time.noticeable


def test_the_first_run_of_an_arm_may_have_one_unless_it_is_declared_otherwise() -> None:
    auto = declared()
    probes = probes_of(auto, None, first=True)
    assert probes.closing is not None
    assert (probes.closing.to_json()["active"], probes.closing.to_json()["wait"]) == (3, 0)
    assert RunProbes.from_json(probes.to_json()) == probes
    assert probes_of(auto, None).closing is None
    assert [probes_of(auto, control, first=True).closing for control in ("a-a", "profiled")] == [None, None]
    # The last is a study from before there was one.
    others = [*(declared(torch_profiler=other) for other in (True, False, {"active": 5})), {"host": False}]
    assert [probes_of(other, None, first=True).closing for other in others] == [None] * 4


@pytest.mark.parametrize(("launch_us", "kind", "taken"), [
    (200.0, "real", CLOSING_WARMUP + CLOSING_STEPS),
    (200.0, "emulated", 0),  # it tells what it did
    (0.0, "real", 0),  # each phase is one launch: nothing is open
    (200.0, "fails", 1),  # within the window
    (200.0, "evaluated", 0),  # its last pass comes after as many steps as that of other runs
])  # fmt: skip
def test_the_steps_of_the_window_are_not_measured(
    launch_us: float, kind: str, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is emulated but says that it is not: what it reports are brackets, as events do."""
    phases = {"forward": 40, "backward": 80}
    device = {"emulated": "gh200", "launch_us": launch_us, "launches": phases, "matmul_efficiency": 0.5}
    kernels = {"kernels": {f"{name}_ms": 2.0 for name in phases}}
    config = TrainerConfig.model_validate(
        {"compute": {"device": device | kernels, "check_finite": True}, "model": {"preset": "gpt2-tiny"}}
    )
    record_ = RunRecord("arm", 0, "done", config=config.model_dump(mode="json"))
    probes = probes_of(declared(host=False, nvml=False), None, first=True)
    run = Run(record_, StudyFolder(tmp_path), probes, Heartbeat(None, None), None)  # type: ignore[arg-type]
    compute = build_compute(config, 100)
    assert isinstance(compute, EmulatedCompute)
    monkeypatch.setattr(EmulatedCompute, "emulated", kind == "emulated")
    evaluator = cast("Evaluator", SimpleNamespace(compilations=0)) if kind == "evaluated" else None
    recorder = StepRecorder()
    folder = tmp_path / "runs" / "arm" / "0"
    folder.mkdir(parents=True)
    tables = RunTables(recorder, folder, os.getpid(), threading.get_native_id(), 0)
    run._training = OpenTraining(cast("Batches", None), compute, recorder, tables, evaluator=evaluator)
    ids = torch.zeros(1, 8, dtype=torch.long)
    asked: list[int] = []

    def noted() -> Iterator[int]:
        for step in train(config, compute, repeat(Batch(ids, ids, None, 8, 7, 1)), prints=False):
            if kind == "fails" and run._open_time.noticeable and len(asked) > REPETITION:
                asked.append(step)
                raise RuntimeError("injected")
            asked.append(step)
            yield step

    telemetry.attach(recorder)
    try:
        steps = noted()
        run._repeat(steps, 0, 1, REPETITION, 0)
        run._profile(steps)
        tables.write()
    finally:
        telemetry.attach(None)
    assert len(asked) == 1 + REPETITION + taken
    report = run.probe_set.report()
    assert ["injected" in problem for problem in report["problems"]] == [True] * (kind == "fails")
    if taken == CLOSING_WARMUP + CLOSING_STEPS:
        (window,) = report["torch_profiler"]["windows"]
        assert window[2:] == (asked[-3], asked[-1])
        assert (folder / "torch_profile.json.gz").exists()
    else:
        assert "torch_profiler" not in report
    run.folder.write_run(record_)
    (data,) = run.folder.runs()
    assert data.steps is not None
    assert [row["step"] for row in data.steps.to_pylist() if not row["warmup"]] == asked[1 : 1 + REPETITION]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_study_takes_the_window_in_the_first_run_of_each_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of this code whose emulated device says that it is real, run by the command line."""
    code = copy_code(
        tmp_path / "code", "trainer/compute/emulated.py", "    emulated = True\n", "    emulated = False\n"
    )
    device = {"emulated": "gh200", "launch_us": 100, "launches": {"forward": 40, "backward": 80}}
    kernels = {"kernels": {"forward_ms": 1.0, "backward_ms": 2.0}}
    scenario = {
        "name": "closing",
        "question": "?",
        "base": {
            "compute": {"device": device | kernels, "precision": "bf16"},
            "data": {"path": "tokens-stream", "sequence_length": 32, "batch_size": 2},
            "model": {"preset": "gpt2-tiny"},
            "steps": REPETITION,
        },
        "arms": {"one": {}, "other": {"data.workers": 1}},
        "controls": ["a-a"],
        "repeats": 2,
    }
    (tmp_path / "scenario.yaml").write_text(json.dumps(scenario))
    words = ("run", str(tmp_path / "scenario.yaml"), "--out", str(tmp_path / "out"))
    monkeypatch.setattr("harness.launch.code.OWN_FOLDER", code)  # fork servers import this state
    done = harness(*words, cwd=code)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out" / "closing").iterdir()
    runs = list(StudyFolder(path).runs())
    assert {(run.record.status, run.record.facts.emulated) for run in runs} == {("done", False)}
    windows = {(run.record.arm, run.record.block): run.probes.torch_profiler for run in runs}
    assert {where for where, facts in windows.items() if facts is not None} == {("one", 0), ("other", 0)}
    for run in runs:
        if run.probes.torch_profiler is None:
            continue
        ((*_, first, last),) = run.probes.torch_profiler.windows
        assert last - first == CLOSING_STEPS - 1
        assert run.steps is not None
        rows = run.steps.to_pylist()
        assert [row["step"] for row in rows][-CLOSING_STEPS:] == list(range(first, last + 1))
        assert all(row["warmup"] for row in rows[-CLOSING_STEPS - CLOSING_WARMUP :])
        assert not rows[-CLOSING_STEPS - CLOSING_WARMUP - 1]["warmup"]
    assert "### one: operators" in StudyFolder(path).summary_md.read_text()
