"""What the probes cost, recovered from declared step times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.judge.controls import is_probe_control
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.show.first_screen import first_screen
from harness.show.summary import summary
from harness.show.text.doubts import probe_problem_lines
from harness.show.words import probes_named
from harness.study.records import ArmRecord
from harness.study.run_data import ProbesRecord
from tests.harness.synthetic import Arm, build, page_of

QUIET = {"day": 0.1, "block": 1e-4, "repetition": 1e-3, "step": 1e-3}


def study(problems: dict[str, list[str]] | None = None, **probes: Any) -> StudyReport:
    """A step of 10 ms without probes: the ledger takes 0.1 ms of it, the sampler 0.2, py-spy 5."""
    arm = Arm("text", read=0.0, tokenize=0.0, pack=0.0, compute={"forward": 10.3})
    costs = {"bare": 10.0, "with-ledger": 10.1, "with-host": 10.3, "with-py_spy": 15.1}
    controls = [arm.variant(kind, compute={"forward": ms}) for kind, ms in costs.items()]
    record, runs = build([arm, *controls], noise=QUIET, spans=False)
    profiled = Arm("text+profiled", control="profiled", of="text")
    record.arms.append(ArmRecord(profiled.name, "profiled", "text"))
    its_run = build([profiled], blocks=1, spans=False)[1][0]
    warm = its_run.steps.set_column(2, "warmup", [[True] * len(its_run.steps)])
    runs.append(replace(its_run, steps=warm))
    ran: dict[str, Any] = {"taken_samples": {"host": 30}, "failed": [], **probes}
    problems = problems or {}
    reported = [
        replace(run, probes=ProbesRecord(problems=tuple(problems.get(run.record.arm, ())), **ran)) for run in runs
    ]
    return analyse(record, reported)


def test_declared_costs_come_out() -> None:
    costs = {probes_named(cost)[0]: cost for cost in study().probe_costs}
    assert list(costs) == [
        "step ledger (always on)",
        "host",
        "py_spy, while it samples",
        "ledger and host together: every measured run",
    ]
    truth = [0.1 / 10.0, 0.2 / 10.1, 5 / 10.1, 0.3 / 10.0]
    for cost, share in zip(costs.values(), truth, strict=True):
        assert cost.share.ci_low - 2e-3 <= share <= cost.share.ci_high + 2e-3  # stages of 0 ms are not quite free
        assert cost.share.median == pytest.approx(share, abs=2e-3)
    assert probes_named(costs["host"]) == ("host", "the ledger")
    assert costs["host"].cost_ms == pytest.approx(0.2, rel=0.1)


def test_a_probe_that_did_not_run_has_no_cost() -> None:
    # The measured runs then carry the ledger alone, which has its row.
    found = study(failed=["py_spy"], taken_samples={"host": 0}).probe_costs
    assert [probes_named(cost)[0] for cost in found] == ["step ledger (always on)"]


def test_the_profiled_run_is_no_figure_and_no_gap_and_what_a_probe_could_not_do_is_said_once() -> None:
    report = study({"text": ["nvml: no driver"], "text+profiled": ["nvml: no driver", "py-spy: not allowed"]})
    assert report.arm("text+profiled") is None
    assert report.problems == ()
    text = page_of(report)
    assert "| host | the ledger | +" in text
    assert "text+bare" not in text  # its step times are in the table of costs, and no control of the arm
    assert [cost["probe"] for cost in summary(report, first_screen(report))["probe_costs"]][1] == "host"
    assert probe_problem_lines(report.probe_problems) == [
        "nvml: no driver (text/0, text/1, text/2 and 3 more)",
        "py-spy: not allowed (text+profiled/0)",
    ]
    assert "- py-spy: not allowed" in text


def test_which_controls_are_there_for_the_probes() -> None:
    assert [is_probe_control(control) for control in ("bare", "with-nvml", "profiled", "a-a", None)] == [
        True, True, True, False, False,
    ]  # fmt: skip
