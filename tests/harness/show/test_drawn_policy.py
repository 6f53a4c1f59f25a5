"""Limits of harness/show/policy.py on what is drawn and listed: at each limit the picture or the page differs."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.explain.ranks import RanksReport, RankTimes, Straggler
from harness.explain.replay.predict import Replays
from harness.explain.replay.whatif import parse_sweep, sweep
from harness.explain.statistics import Estimate
from harness.explain.unusual_steps import StepTimes
from harness.judge.controls import Scaling
from harness.judge.learning import ChoicePass
from harness.judge.probes.results import ProbeResults
from harness.judge.study import analyse
from harness.scenario.edits import parse_edits
from harness.show import plots, profile, sweeps
from harness.show.curves import PlottedRun, choices_figure, curve, smoothed_steps
from harness.show.drawing import WIDE
from harness.show.first_screen import first_screen
from harness.show.machine import steps_section
from harness.show.names import ArmNames
from harness.show.plotted_runs import CurveSource, named
from harness.show.ranks import _scaled_by, rank_lines
from harness.show.summary import summary
from harness.show.tables import short
from harness.show.timeline.build import timeline
from harness.show.timeline.model import NO_SOURCES, last_steps
from harness.show.timeline.operators import sample_slices
from harness.show.timeline.tracks import sampled
from tests.harness.explain.replay import oracle
from tests.harness.show.test_file_pictures import HIDDEN
from tests.harness.show.test_profile import MS, complete, profiled
from tests.harness.show.test_stacks_section import report as stacks_report
from tests.harness.show.timeline import tables
from tests.harness.show.timeline.test_counters import LENGTH, two_repetitions
from tests.harness.synthetic import Arm, build

NAMES = ArmNames(["a", "b"])


def test_a_picture_has_as_many_rows_as_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "in_both", lambda make, _: make.args[0])
    arms = [SimpleNamespace(control=None, blocks=1)] * 61
    compared: Any = SimpleNamespace(compared=[None] * 61, arms=arms, learning=None, emulated=False)
    found: Any = plots.pictures(compared, NAMES)
    assert {name: len(rows) for name, rows in found.items()} == {
        plots.ISOLATED: 60, plots.FOREST: 60, plots.WHY: 60, plots.LEDGER: 60,
    }  # fmt: skip


def test_memory_is_drawn_of_a_few_processes() -> None:
    figure = plots.memory([profiled()] * 9)
    assert figure is not None
    assert len(figure.axes) == 8


@pytest.mark.parametrize(("runs", "bands"), [(3, 3), (4, 0)])
def test_intervals_are_drawn_of_a_few_runs(runs: int, bands: int) -> None:
    answered = tuple(ChoicePass(step, 100, 0.3, 0.3, 0.3, 0.3) for step in (1, 2))
    plotted = [PlottedRun(f"run-{place}", curve([]), curve([]), answered) for place in range(runs)]
    assert len(choices_figure(plotted, "acc", "steps").axes[0].collections) == bands


@pytest.mark.parametrize(("steps", "covered"), [(39, 1), (40, 2), (10_000, 50)])
def test_a_mean_covers_a_twentieth_of_a_curve(steps: int, covered: int) -> None:
    assert smoothed_steps(steps) == covered


@pytest.mark.parametrize(("last", "scale"), [(4, "linear"), (5, "log")])
def test_values_far_apart_are_drawn_on_a_log_scale(last: int, scale: str) -> None:
    edits = parse_edits(())
    found = sweep(Replays([oracle.run(HIDDEN)]), edits, *parse_sweep(f"device=1x,2x,{last}x", edits))
    figure = sweeps.sweep_figure(found, "a", found.recorded[0], (), WIDE)
    assert figure.axes[0].get_xscale() == scale


def operators(count: int) -> list[str]:
    return [complete(f"aten::op{place}", (100 + place) * MS, MS) for place in range(count)]


def kernels(count: int) -> list[str]:
    return [complete(f"kernel{place}", (300 + place) * MS, MS, "kernel", 0, 7) for place in range(count)]


def test_tables_of_a_profile_list_the_longest() -> None:
    page = profile.operators_section([profiled(*operators(30), *kernels(12), workers=6)], [])
    main = page[page.index("| main: operator") :].split("\n\n")[0]
    assert len(main.splitlines()) == 2 + 15 + 1  # a header, the operators, and the others
    assert page.count("stage: tokenize") == 4
    assert "2 more workers recorded" in page
    assert page.count("| `kernel") == 10


def test_a_worker_lists_fewer_operators_than_the_main_process() -> None:
    worker = profiled(workers=1)
    (role,) = [one for one in worker.operators.roles if one.role != "main"]
    many = SimpleNamespace(role=role.role, operators=list(role.operators) * 9, span_ms=role.span_ms)
    assert len(profile._operator_table(worker, many).splitlines()) == 2 + 8 + 1  # type: ignore[arg-type]


def test_places_with_few_samples_are_left_out() -> None:
    shares = [SimpleNamespace(whole=SimpleNamespace(share=share)) for share in (0.009, 0.01)]
    assert profile._shown_places(SimpleNamespace(places=shares)) == shares[1:]  # type: ignore[arg-type]


def test_a_place_shows_few_functions_and_the_innermost_frames() -> None:
    (place, *_) = stacks_report().places
    deep = replace(place.functions[0], name=";".join(f"f{level} (a.py)" for level in range(9)))
    many = replace(place, functions=(place.functions[0],) * 9, stacks=(deep,))
    found = replace(stacks_report(), places=(many,))
    assert len(profile._functions(found).splitlines()) == 2 + 3
    assert [f"f{level} " in profile._deepest(found) for level in (4, 5, 8)] == [False, True, True]


def test_the_slowest_outliers_are_listed() -> None:
    few = tuple(range(12))
    found = StepTimes("a", 0, 12, 12, 1.0, few, tuple(map(float, few)), few, few, ("outlier",) * 12)
    assert steps_section([found], NAMES).count("\n| a |") == 10


def test_the_summary_has_the_longest_operators() -> None:
    report = analyse(*build([Arm("a")], blocks=3))
    found: Any = summary(report, first_screen(report), ProbeResults(profiles=[profiled(*operators(40))]))
    assert len(found["operators"]["text|1"]["main"]) == 30


def test_a_long_function_name_is_cut() -> None:
    assert short("x" * 70) == "x" * 70
    assert len(short("x" * 71)) == 70


@pytest.mark.parametrize(("keys", "name"), [(2, "k0 0, k1 0"), (3, "x")])
def test_a_few_settings_name_a_run(keys: int, name: str) -> None:
    nothing = PlottedRun("", curve([]), curve([]))
    sources = [
        CurveSource(nothing, Path(folder), config={f"k{key}": value for key in range(keys)})
        for value, folder in enumerate(("/runs/x", "/runs/y"))
    ]
    assert named(sources)[0].name == name


def ranks(wait_ms: float, straggler: Straggler | None = None) -> str:
    times = tuple(RankTimes(number, 100.0, None, 1.0, wait_ms) for number in range(2))
    arm = SimpleNamespace(name="a", control=None, ranks=RanksReport("ddp", 100.0, times, straggler=straggler))
    (line,) = rank_lines([arm], NAMES)  # type: ignore[list-item]
    return line.finding


@pytest.mark.parametrize(("saved_ms", "late"), [(0.9, False), (1.1, True)])
def test_a_short_wait_makes_no_straggler(saved_ms: float, late: bool) -> None:
    found = ranks(1.0, Straggler(1, "forward", saved_ms, saved_ms))
    assert found.startswith("rank 1 makes the others wait") is late


@pytest.mark.parametrize(("wait_ms", "surely"), [(4.9, False), (5.1, True)])
def test_long_waits_without_a_straggler_are_by_turns(wait_ms: float, surely: bool) -> None:
    assert ("surely" in ranks(wait_ms)) is surely


@pytest.mark.parametrize(("keys", "others"), [(4, False), (5, True)])
def test_a_few_differing_settings_of_scaling_are_named(keys: int, others: bool) -> None:
    found = Scaling("a", "b", (1, 2), Estimate(1.9, 1.8, 2.0, 5), None, differs=tuple(f"k{key}" for key in range(keys)))
    (line,) = _scaled_by(found, "a")
    assert ("others" in line) is others


def test_a_timeline_shows_the_last_steps_of_a_run() -> None:
    record, runs = build([Arm("a")], blocks=1, steps=40)
    made = timeline(replace(record, scenario_text={}), runs)
    facts = json.loads(gzip.decompress(made.content))["otherData"]
    assert [run["steps"] for run in facts["runs"]] == [20]


@pytest.mark.parametrize(("after_ms", "shown"), [(499, True), (501, False)])
def test_a_sample_soon_after_a_window_belongs_to_it(after_ms: int, shown: bool) -> None:
    recorded = two_repetitions((LENGTH + after_ms * 1_000_000, "host:main", "resident_bytes", 7.0, "bytes"))
    window = last_steps(recorded, NO_SOURCES, 4)
    assert bool(sampled(window).counters) is shown


@pytest.mark.parametrize(("gap_ns", "slices"), [(1_000_000, 1), (1_000_001, 2)])
def test_samples_of_one_moment_are_one_slice(gap_ns: int, slices: int) -> None:
    second = 10_000_000 + gap_ns
    rows = [(start, 10_000_000, 1, 1, "main", ["main (a.py:1)"]) for start in (0, second)]
    assert len(sample_slices(tables.stacks(*rows), [(0, 100_000_000)])) == slices
