"""Each limit of harness/show/policy.py decides what is said, drawn or listed: just below and at it the page differs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from harness.explain.causes import SlowCause
from harness.explain.ranks import RanksReport, RankTimes, Straggler
from harness.explain.replay.attribution import Removal
from harness.explain.replay.predict import Replays
from harness.explain.replay.whatif import parse_sweep, sweep
from harness.explain.statistics import Estimate
from harness.explain.unusual_steps import StepTimes
from harness.judge.claims import JudgedClaim
from harness.judge.comparisons import Absent
from harness.judge.confounds import Confound
from harness.judge.controls import Scaling
from harness.judge.doubts import ProbeProblem, Unseen, doubt
from harness.judge.learning import ChoicePass
from harness.judge.probes.results import ProbeResults
from harness.judge.report_types import (
    Advice,
    ArmAdvice,
    ArmExplained,
    ArmReport,
    ArmTotals,
    Comparison,
    Explained,
    ModelSpeed,
)
from harness.judge.waits import Waits
from harness.scenario.claims import CLAIMS
from harness.scenario.edits import parse_edits
from harness.show import numbers, plots, profile, sweeps, why
from harness.show.advice import next_steps
from harness.show.curves import PlottedRun, choices_figure, curve, smoothed_steps
from harness.show.drawing import WIDE
from harness.show.first_screen import first_screen
from harness.show.lone_arms import group_lines, lone_lines
from harness.show.machine import steps_section
from harness.show.names import ArmNames
from harness.show.plotted_runs import CurveSource, named
from harness.show.ranks import _scaled_by, rank_lines
from harness.show.sentences import _behind, left_open, sentence
from harness.show.summary import summary
from harness.show.tables import short
from harness.show.text.doubts import confound_lines, doubt_text, probe_problem_lines
from harness.show.text.findings import cause_texts
from harness.show.text.verdicts import finding, undecided_because
from harness.show.timeline.build import timeline
from harness.show.timeline.model import NO_SOURCES, last_steps
from harness.show.timeline.operators import sample_slices
from harness.show.timeline.tracks import sampled
from harness.show.why import launch_bound_lines
from harness.show.words import percent, percent_over
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.test_sweep import HIDDEN
from tests.harness.show.studies import analysed, built
from tests.harness.show.test_profile import MS, complete, profiled
from tests.harness.show.test_stacks_section import report as stacks_report
from tests.harness.show.test_text import kinds
from tests.harness.show.timeline import tables
from tests.harness.show.timeline.test_counters import LENGTH, two_repetitions
from tests.harness.synthetic import Arm
from trainer.devices.estimates import Convention

NAMES = ArmNames(["a", "b"])
measured = kinds.measured


def arm(name: str = "a", **changes: Any) -> ArmReport:
    """Return an arm with steps of 100 ms."""
    totals = ArmTotals(
        steps=90, step_ms=Estimate(100, 99, 101, 3), p50_ms=100, phase_ms={"fetch": 0.0, "forward": 100.0}
    )
    return replace(ArmReport(name, None, None, {}, 3, totals, ModelSpeed(), ArmExplained()), **changes)


def totals(**changes: Any) -> ArmTotals:
    return replace(arm().totals, **changes)


def compared(waited_ms: float) -> str:
    """Return the sentence on a comparison whose baseline waits ``waited_ms`` of each 100 ms step."""
    hidden = {"tokenize": 5.0 - waited_ms}
    waits = Waits(
        100.0, waited_ms, {"tokenize": 5.0}, exposed_ms={"tokenize": waited_ms}, hidden_ms=hidden, contended_ms=0.0
    )
    found = replace(measured("gain"), baseline_waits=waits, candidate_waits=waits)
    return sentence(Comparison("a", "b", found, Explained({}, (), Absent("no tables"), (), ()), ()))


def ranks_apart(apart_ms: float) -> str:
    ranks = [
        arm(name, unseen=Unseen(ranks=2), totals=totals(phase_ms={"fetch": 20.0 + more, "forward": 80.0 - more}))
        for name, more in (("a", 0.0), ("b", apart_ms))
    ]
    (line,) = group_lines(ranks, None, NAMES)
    return line.finding


def caused(*found: SlowCause) -> list[tuple[str, str, str]]:
    return [*cause_texts(arm(causes=found), 100.0)]


def spent(share: float, place: str = "train.py:1", kind: str = "code") -> SlowCause:
    return SlowCause(kind, place, of=100, spent_ms=share * 1e4, wall_ms=1e4)


def wait(share: float = 1.0, ms: float = 6.0) -> list[tuple[str, str, str]]:
    return caused(SlowCause("device wait", "train.py:1", times=1.0, share=share, ms=ms))


def padding(ms: float | None, columns: float = 0.4) -> list[tuple[str, str, str]]:
    return caused(SlowCause("padding", ms=ms, figures={"share": 0.5, "column_share": columns}))


def savings(*speeds: float) -> int:
    saved = Estimate(2.0, 1.9, 2.1, 5)
    parts = tuple(Removal("phase", f"p{n}", saved, Estimate(one, one, one, 5)) for n, one in enumerate(speeds))
    return why.savings([arm(explained=ArmExplained(within_tolerance=True, removals=parts))], NAMES).count("| a |")


def too_coarse(**changes: Any) -> str:
    return undecided_because(replace(measured("undecided", "too coarse"), **changes)) or ""


def no_difference(low: float, high: float) -> str:
    return finding(replace(measured("none"), ratio=Estimate(0.99, low, high, 6), noise_floor=0.0))


def loads(other: float) -> str:
    return confound_lines([Confound("host load", ("a", "b"), values=(1.0, other))])[0]


def ranks(wait_ms: float, straggler: Straggler | None = None) -> str:
    times = tuple(RankTimes(number, 100.0, None, 1.0, wait_ms) for number in range(2))
    one = SimpleNamespace(name="a", control=None, ranks=RanksReport("ddp", 100.0, times, straggler=straggler))
    (line,) = rank_lines([one], NAMES)
    return line.finding


def scaled(keys: int) -> str:
    differs = tuple(f"k{key}" for key in range(keys))
    (line,) = _scaled_by(Scaling("a", "b", (1, 2), Estimate(1.9, 1.8, 2.0, 5), None, differs=differs), "a")
    return line


def run_name(keys: int) -> str:
    nothing = PlottedRun("", curve([]), curve([]))
    sources = [
        CurveSource(nothing, Path(folder), config={f"k{key}": value for key in range(keys)})
        for value, folder in enumerate(("/runs/x", "/runs/y"))
    ]
    return named(sources)[0].name


def bands(runs: int) -> int:
    answered = tuple(ChoicePass(step, 100, 0.3, 0.3, 0.3, 0.3) for step in (1, 2))
    plotted = [PlottedRun(f"run-{place}", curve([]), curve([]), answered) for place in range(runs)]
    return len(choices_figure(plotted, "acc", "steps").axes[0].collections)


def scale(last: int) -> str:
    edits = parse_edits(())
    found = sweep(Replays([oracle.run(HIDDEN)]), edits, *parse_sweep(f"device=1x,2x,{last}x", edits))
    return sweeps.sweep_figure(found, "a", found.recorded[0], (), WIDE).axes[0].get_xscale()


def counted(after_ms: int) -> bool:
    recorded = two_repetitions((LENGTH + after_ms * 1_000_000, "host:main", "resident_bytes", 7.0, "bytes"))
    return bool(sampled(last_steps(recorded, NO_SOURCES, 4)).counters)


def slices(gap_ns: int) -> int:
    rows = [(start, 10_000_000, 1, 1, "main", ["main (a.py:1)"]) for start in (0, 10_000_000 + gap_ns)]
    return len(sample_slices(tables.stacks(*rows), [(0, 100_000_000)]))


LIMITS: dict[str, tuple[Callable[[Any], object], Any, Any, Any, Any]] = {
    # name: what is observed of a value; a value and what it gives, on either side of the limit
    "readings that hardly differ are one": (lambda ms: left_open((10, 10 + ms), 100) is None, 0.9, True, 1.1, False),
    "a short wait": (lambda ms: "waits for none of it" in compared(ms), 0.09, True, 0.11, False),
    "ranks wait alike": (lambda ms: ranks_apart(ms).startswith("all wait about as long"), 4.8, True, 5.2, False),
    "a typical step beside the mean": (
        lambda ms: "typically" in lone_lines(arm(totals=totals(p50_ms=ms)), NAMES)[0].finding, 96.0, False, 94.5, True),
    "hidden behind a phase": (
        lambda ms: _behind({"forward": ms, "backward": 0.5}, 100.0), 74.0, "the step", 76.0, "forward"),
    "hidden behind phases": (lambda ms: _behind({"forward": ms, "backward": ms, "log": 100 - 2 * ms}, 100.0), 34.0,
                             "the step", 38.0, "forward and backward"),
    "device time of unknown use": (
        lambda ms: len(launch_bound_lines([arm(totals=totals(device_open_ms=ms))])), 0.9, 0, 1.1, 1),
    "short waits": (lambda ms: bool(wait(ms=ms)), 0.4, False, 0.6, True),
    "little own code": (lambda share: bool(caused(spent(share))), 0.048, False, 0.052, True),
    "little collecting": (lambda share: bool(caused(spent(share, kind="gc"))), 0.048, False, 0.052, True),
    "little padding": (lambda ms: bool(padding(ms)), 4.8, False, 5.2, True),
    "nearly every step": (lambda share: "every step" in wait(share)[0][1], 0.94, False, 0.96, True),
    "loads that hardly differ": (lambda cores: "during both" in loads(cores), 1.09, True, 1.11, False),
    "a resolution beyond 2x": (lambda share: "%" in too_coarse(resolution=share), 0.95, True, 1.05, False),
    "small gain": (lambda gain: f"can gain {gain:.3f}x at most" in too_coarse(ceiling=Estimate(gain, gain, gain, 5)),
                       1.029, True, 1.031, False),
    "a lopsided interval": (lambda high: "between" in no_difference(0.96, high), 1.019, True, 1.021, False),
    "a little lopsided interval": (lambda low: "between" in no_difference(low, 1.0), 0.979, True, 0.981, False),
    "small savings": (lambda speed: savings(speed), 1.0008, 0, 1.0012, 1),
    "many savings": (lambda n: savings(*[1.2] * n), 8, 8, 9, 8),
    "small shares": (percent, 0.0004, "under 0.1 %", 0.0006, "0.1 %"),
    "digits above a limit": (lambda share: percent_over(share, 0.1), 0.1000000004, "10 %", 0.100004, "10.0004 %"),
    "intervals of a few runs": (bands, 3, 3, 4, 0),
    "a mean of a short curve": (smoothed_steps, 39, 1, 40, 2),
    "a mean of a long curve": (smoothed_steps, 1000, 50, 10_000, 50),
    "values far apart": (scale, 4, "linear", 5, "log"),
    "a long function name": (lambda n: len(short("x" * n)), 70, 70, 71, 70),
    "settings that name a run": (run_name, 2, "k0 0, k1 0", 3, "x"),
    "a straggler": (lambda ms: ranks(1.0, Straggler(1, "forward", ms, ms)).startswith("rank 1 makes the others wait"),
                    0.9, False, 1.1, True),
    "waits by turns": (lambda ms: "surely" in ranks(ms), 4.9, False, 5.1, True),
    "settings of scaling": (lambda keys: "others" in scaled(keys), 4, False, 5, True),
    "a sample after a window": (counted, 499, True, 501, False),
    "samples of one moment": (slices, 1_000_000, 1, 1_000_001, 2),
    "places with few samples": (lambda share: len(profile._shown_places(SimpleNamespace(
        places=[SimpleNamespace(whole=SimpleNamespace(share=share))]))), 0.009, 0, 0.01, 1),
}  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_said_differs_at_a_limit(limit: str) -> None:
    observed, first, its, second, other = LIMITS[limit]
    assert (observed(first), observed(second)) == (its, other)


def test_padding_in_model_flops_is_noted_and_every_count_has_its_formula() -> None:
    def noted(*shares: float) -> str:
        shown = [arm(speed=ModelSpeed(flops_per_s=1e12), totals=totals(useful_fraction=one)) for one in shares]
        return numbers.arms(shown, NAMES)

    assert "padding" not in noted(0.91)
    assert "padding included, of which 89 % are trained on." in noted(0.89)
    assert "padding included, of which 25 % to 98 % are trained on." in noted(0.25, 0.98)
    assert set(numbers.CONVENTIONS) == set(get_args(Convention))


def test_causes_have_a_remedy_for_where_they_are() -> None:
    ((*_, shorter),), ((*_, alike),) = padding(5.2, 0.26), padding(5.2, 0.24)
    assert shorter != alike
    assert padding(None, 0.26)  # a device works while the host goes on: no time is known, the share is
    ((*_, waits),) = caused(replace(spent(0.2), called="queue.Queue.get"))
    ((*_, works),) = caused(replace(spent(0.2), called="torch.serialization.save"))
    assert waits != works  # a wait for another thread is no work
    ((_, found, _),) = caused(*(spent(0.1 + place / 100, f"train.py:{place}") for place in range(1, 6)))
    assert [place for place in range(1, 6) if f"train.py:{place}" in found] == [3, 4, 5]


def test_own_code_beside_waits_for_workers_promises_nothing() -> None:
    """Without it the step waited as much longer for the worker, and the line said "do it less often"."""
    alone, behind = (
        [*cause_texts(arm(causes=(spent(0.2),), workers=workers, totals=totals(exposed_ms={"read": waited})), 100.0)]
        for workers, waited in ((0, 30.0), (1, 30.0))
    )
    hidden = [*cause_texts(arm(causes=(spent(0.2),), workers=1, totals=totals(exposed_ms={"read": 1.0})), 100.0)]
    assert alone == hidden
    assert behind[0][:2] == alone[0][:2]
    assert behind[0][2] != alone[0][2]


def test_an_undecided_comparison_names_what_limits_it() -> None:
    assert doubt_text(doubt("too coarse", share=1.58)) == "the runs varied too much to show even a 2x change"
    scattered = too_coarse(
        trained_per_step=6.1, measure="trained tokens/s", ratio=Estimate(6.0, 0.9, 40.0, 5), together=None
    )
    assert "for less padding, a step trains 6.10x as many tokens" in scattered
    found = ArmAdvice("a", (), within_tolerance=True, from_blocks=True, noise_floor=0.01, resolution=0.019)
    assert "smallest change that this study can see (1.9 %)" in next_steps([found], NAMES).note


def test_long_lists_are_cut() -> None:
    options = tuple(Advice(f"prefetch={n}", Estimate(1.2, 1.1, 1.3, 6), "memory", worth=True) for n in range(1, 8))
    found = next_steps([ArmAdvice("a", options, within_tolerance=True, from_blocks=True, noise_floor=0.01)], NAMES)
    assert len(found.ranked) == 5
    assert "2 more" in found.note
    problem = ProbeProblem("no nvml", tuple(f"a/{block}" for block in range(5)), everywhere=False)
    assert probe_problem_lines([problem]) == ["no nvml (a/0, a/1, a/2 and 2 more)"]
    keys = tuple(f"data.key{n}" for n in range(6))
    claim = JudgedClaim("batching", "a", "b", None, "not measurable", CLAIMS["batching"], differs=keys)
    assert "data.key0, data.key1, data.key2, data.key3 and others as well" in numbers.claim_sentence(claim, NAMES)
    few = tuple(range(12))
    times = StepTimes("a", 0, 12, 12, 1.0, few, tuple(map(float, few)), few, few, ("outlier",) * 12)
    assert steps_section([times], NAMES).count("\n| a |") == 10
    assert "draws every step" in steps_section([replace(times, steps=len(times.step))], NAMES)
    assert f"draws {len(times.step)} of them" in steps_section([replace(times, steps=10**6)], NAMES)
    operators = [complete(f"aten::op{place}", (100 + place) * MS, MS) for place in range(40)]
    report = analysed(Arm("a"), blocks=3)
    found_json: Any = summary(report, first_screen(report), ProbeResults(profiles=[profiled(*operators)]))
    assert len(found_json["operators"]["text|1"]["main"]) == 30


def test_tables_of_a_profile_list_the_longest() -> None:
    operators = [complete(f"aten::op{place}", (100 + place) * MS, MS) for place in range(30)]
    kernels = [complete(f"kernel{place}", (300 + place) * MS, MS, "kernel", 0, 7) for place in range(12)]
    page = profile.operators_section([profiled(*operators, *kernels, workers=6)], [])
    main = page[page.index("| main: operator") :].split("\n\n")[0]
    assert len(main.splitlines()) == 2 + 15 + 1  # a header, the operators, and the others
    assert page.count("stage: tokenize") == 4
    assert "2 more workers recorded" in page
    assert page.count("| `kernel") == 10
    worker = profiled(workers=1)
    (role,) = [one for one in worker.operators.roles if one.role != "main"]
    many: Any = SimpleNamespace(role=role.role, operators=list(role.operators) * 9, span_ms=role.span_ms)
    assert len(profile._operator_table(worker, many).splitlines()) == 2 + 8 + 1
    (place, *_) = stacks_report().places
    deep = replace(place.functions[0], name=";".join(f"f{level} (a.py)" for level in range(9)))
    found = replace(stacks_report(), places=(replace(place, functions=(place.functions[0],) * 9, stacks=(deep,)),))
    assert len(profile._functions(found).splitlines()) == 2 + 3
    assert [f"f{level} " in profile._deepest(found) for level in (4, 5, 8)] == [False, True, True]


def test_pictures_and_timelines_have_as_much_as_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = plots.memory([profiled()] * 9)
    assert len(figure.axes) == 8
    record, runs = built(Arm("a"), blocks=1, steps=40)
    made = timeline(replace(record, scenario_text={}), runs)
    facts = json.loads(gzip.decompress(made.content))["otherData"]
    assert [run["steps"] for run in facts["runs"]] == [20]
    monkeypatch.setattr(plots, "in_both", lambda make, _: make.args[0])
    arms = [SimpleNamespace(control=None, blocks=1)] * 61
    many: Any = SimpleNamespace(compared=[None] * 61, arms=arms, learning=None, emulated=False)
    found: Any = plots.pictures(many, NAMES)
    assert {name: len(rows) for name, rows in found.items()} == {
        plots.ISOLATED: 60, plots.FOREST: 60, plots.WHY: 60, plots.LEDGER: 60,
    }  # fmt: skip
