"""Which method of which probe a run calls, and when."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

import harness.probes.probe
from harness.probes.ledger.recorders import attach_in_worker
from harness.probes.probe import PROBES, Probe, ProbeKind, ProbeReport, ProbeSet, ProbeSettings, RunProbes
from harness.study.contract import Columns
from trainer import telemetry

CALLS: list[str] = []
NOTED = ("begin_repetition", "begin_steps", "end_repetition", "wait", "close")


@dataclass(frozen=True)
class NotedSettings(ProbeSettings):
    name: str


class Noted(Probe):
    """Notes what is called. It has one row and one fact."""

    settings_type = NotedSettings

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattribute__(self, name: str) -> Any:
        if name in NOTED:
            return lambda: CALLS.append(f"{self._name}.{name}")
        return super().__getattribute__(name)

    @classmethod
    def attach(cls, settings: NotedSettings, folder: Path) -> Self:  # noqa: ARG003
        CALLS.append(f"{settings.name}.attach")
        return cls(settings.name)

    @classmethod
    def attach_in_worker(cls, settings: NotedSettings, folder: Path, worker_id: int, *, windows: bool) -> None:  # noqa: ARG003
        CALLS.append(f"{settings.name} in worker {worker_id}, windows {windows}")

    def run_window(self, next_step: Callable[[], int], recorder: telemetry.Recorder) -> None:
        CALLS.append(f"{self._name}.run_window from step {next_step()}")

    def tables(self) -> Mapping[str, Columns]:
        return {"samples": {"t_ns": [1], "source": [self._name]}}

    def report(self) -> ProbeReport:
        return ProbeReport((f"{self._name}: late",), {f"by {self._name}": 1}, failed=self._name == "second")


class Plain(Probe):
    """Overrides only what it must."""

    settings_type = ProbeSettings

    @classmethod
    def attach(cls, settings: ProbeSettings, folder: Path) -> Self:  # noqa: ARG003
        return cls()

    def report(self) -> ProbeReport:
        return ProbeReport()


NAMES = ("steady", "first", "second")


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = f"{__name__}:Noted"
    listed = [ProbeKind(name, noted, disturbs=name != "steady") for name in NAMES]
    listed.append(ProbeKind("plain", f"{__name__}:Plain", disturbs=False))
    monkeypatch.setattr(harness.probes.probe, "PROBES", listed)
    CALLS.clear()


def probe_set(*names: str, windows: bool = False) -> ProbeSet:
    made = ProbeSet(RunProbes(windows=windows, settings={name: NotedSettings(name) for name in names}), Path())
    assert [f"{name}.attach" for name in names] == CALLS
    CALLS.clear()
    return made


def test_without_windows_every_probe_runs_beside_repetitions_and_the_last_begun_ends_first() -> None:
    probes = probe_set("steady", "first")
    for method in NOTED:
        getattr(probes, method)()
    order = {"end_repetition": ("first", "steady")}
    assert [f"{name}.{method}" for method in NOTED for name in order.get(method, ("steady", "first"))] == CALLS


def test_with_windows_those_that_disturb_have_theirs_one_after_the_other_while_the_others_record() -> None:
    probes = probe_set(*NAMES, windows=True)
    numbers = iter(range(7, 9))
    probes.run_windows(lambda: next(numbers), recorder=None)  # type: ignore[arg-type]
    windows = ["first.run_window from step 7", "second.run_window from step 8"]
    assert ["steady.begin_steps", *windows, "steady.end_repetition"] == CALLS
    CALLS.clear()
    probes.begin_repetition()
    assert CALLS == ["steady.begin_repetition"]


def test_only_a_window_leaves_facts_of_a_probe_that_disturbs() -> None:
    windowed, beside = probe_set(*NAMES, windows=True).report(), probe_set("second").report()
    late = [f"{name}: late" for name in NAMES]
    entries = {"by steady": 1, "first": {"by first": 1}, "second": {"by second": 1}}
    assert windowed == {"problems": late, **entries, "failed": ["second"]}
    assert beside == {"problems": ["second: late"], "failed": ["second"]}


def test_samples_are_those_of_all_probes() -> None:
    assert probe_set().samples() == {}
    assert probe_set("steady", "first").samples() == {"t_ns": [1, 1], "source": ["steady", "first"]}


def test_a_probe_need_not_override_what_it_has_no_use_for(tmp_path: Path) -> None:
    probes = ProbeSet(RunProbes.from_json({"ledger": True, "windows": False, "plain": {}}), tmp_path)
    for method in NOTED:
        getattr(probes, method)()
    assert probes.samples() == {}
    assert probes.report() == {"problems": [], "failed": []}


@pytest.mark.parametrize("ledger", [True, False])
def test_every_probe_is_attached_in_each_worker_of_a_run_with_a_ledger(ledger: bool, tmp_path: Path) -> None:
    probes = RunProbes(ledger, windows=True, settings={name: NotedSettings(name) for name in ("first", "steady")})
    try:
        attach_in_worker(None, probes, tmp_path, 3)
        assert (telemetry.take() is not None) == ledger
    finally:
        telemetry.attach(None)
    assert ["steady in worker 3, windows True", "first in worker 3, windows True"] * ledger == CALLS


def test_the_list_of_probes_is_true_and_nothing_else_names_one() -> None:
    for kind in PROBES:
        assert issubclass(kind.load().settings_type, ProbeSettings), kind
    source = inspect.getsource(harness.probes.probe)
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name and name.startswith("harness.probes.") and name.count(".") > 2]
    for driver in (RunProbes, ProbeSet):
        assert not [kind.name for kind in PROBES if kind.name in inspect.getsource(driver)]
