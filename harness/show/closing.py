"""Writes the last sections of summary.md: what probes cost, how to read the page and how to repeat the study."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from harness.explain.statistics import RESAMPLES, Estimate
from harness.judge.probes.probe_cost import ProbeCost
from harness.judge.report_types import StudyReport
from harness.scenario.overrides import lookup
from harness.show.tables import NOT_MEASURED, code, fenced, number_cell, safe, table
from harness.show.words import probes_named
from harness.study.records import COMMAND


def probes(costs: Sequence[ProbeCost], problems: Sequence[str]) -> str:
    """What the probes cost and what went wrong with them; empty where nothing was calibrated and nothing did."""
    parts = []
    if costs:
        header = ["probe", "added to", "cost, share of the step", "ms per step", "blocks"]
        rows = [
            [*probes_named(cost), _share(cost.share), number_cell(cost.cost_ms), str(cost.share.n)] for cost in costs
        ]
        parts.append(table(header, rows))
        parts.append(
            "Median [95 % interval] of the step time with the probe / without it, minus 1; both alternated in this "
            "study. If the interval includes 0, the cost may be none, or as much as its upper end. *torch_profiler* "
            "and *py_spy* run beside no measured step: each arm has one more run for them. Their cost here is that of "
            "recording in the trainer's main process, without writing the profile. The profiled run also marks phases "
            "and profiles the loader workers."
        )
    if problems:
        parts.append("What the probes could not do:")
        parts.append("\n".join(f"- {safe(problem)}" for problem in problems))
    return "\n\n".join(parts)


def _share(share: Estimate) -> str:
    def signed(value: float) -> str:
        return f"{100 * value:+.2f} %"

    if share.ci_low is None or share.ci_high is None:
        return f"{signed(share.median)} {NOT_MEASURED}"
    return f"{signed(share.median)} [{signed(share.ci_low)}, {signed(share.ci_high)}]"


ANOTHER_ORDER = "each block sees the documents\n  in another order"
OWN_ORDER = "a program that\n  seeds itself sees the same data in each block"
SAME_ORDER = "each block sees the same\n  documents in the same order"
SOME_SHUFFLED = "where they are shuffled,\n  each block sees the documents in another order"
OWN_SOURCE = "a data source that\n  seeds itself gives each block the same data"
PARTS = "they are consecutive parts of\n  one run"
HOW_TO_READ = """\
- **exposed**: what a stage cost the step. It is the part of the waits that the stage caused, by replay of the run
  without it. **hidden**: stage time during which the step did not wait. It may still take cores from the step.
  **waiting for a core**: time in which the main thread was ready and had no core (run-queue delay).
- **ceiling**: how many times as fast the step would be without any data work. It is an estimate, not a bound. Its
  median is that of the *ideal data* control, or of the replay without one. Its interval covers both.
- **unclear** beside a ratio: its interval includes no change, and a change of 1 % or more.
- **noise floor**: how much an unchanged arm differs from itself (A/A control). A **gain** or **loss** needs an interval
  that excludes 1 and a median beyond the noise floor. Without a noise floor there is no verdict. A gain also needs
  equal losses.
- With N comparisons each verdict uses an interval of 1 - 5 % / N, so that all N hold together with 95 %. The figure
  after "95 % interval" is the interval of one comparison alone.
- **tokens/s** counts all positions, padding included. **trained tokens/s** counts those with a label. For commands
  (`exec`), only positions are counted, and losses are only checked for NaN and infinity on a CPU.
- Intervals: medians over blocks, paired within a block (total over its repetitions; \
{order}), by a smoothed bootstrap over blocks ({resamples} resamples) expanded for few blocks, and where
  neighbouring blocks are alike. Fewer than 3 blocks give none.
- `harness trace STUDY` opens the timeline in Perfetto: phases, worker stages, waits and device idle by cause, counters,
  operators and samples of a window of steps, with an arrow from the worker's batch to the phase that used it."""


def how_to_read(report: StudyReport) -> str:
    """The same for every study, but for what its blocks are."""
    return HOW_TO_READ.format(order=_order(report), resamples=2 * RESAMPLES)


def _order(report: StudyReport) -> str:
    """In what order the data of a block comes, as far as another block may see another one."""
    study = report.study
    arms = [arm for arm in study.arms if arm.control is None]
    if any(COMMAND in arm.declared for arm in arms):
        return OWN_ORDER
    if study.is_training or any(arm.attached is not None for arm in report.arms):
        return PARTS
    if any(lookup(arm.config, "data.source") is not None for arm in arms):
        return OWN_SOURCE
    kept = [lookup(arm.config, "data.shuffle") is False for arm in arms]
    return SAME_ORDER if kept and all(kept) else SOME_SHUFFLED if any(kept) else ANOTHER_ORDER


def reproduction(report: StudyReport) -> str:
    """The command, the scenario, how arms were interleaved, and what it ran on."""
    study = report.study
    lines: list[str] = []
    if study.command:
        lines.append(fenced(shlex.join(study.command)))
    facts = [f"scenario file {code(study.scenario_file)}"] if study.scenario_file else []
    facts.append(safe(f"{study.blocks} blocks, interleave: {study.interleave}{_because(study.interleave_reason)}"))
    if study.created_utc:
        facts.append(safe(f"started {study.created_utc}" + (f", ended {study.ended_utc}" if study.ended_utc else "")))
    lines.append("\n".join(f"- {fact}" for fact in facts))
    environment = {key: value for key, value in report.environment.items() if value is not None}
    devices = dict.fromkeys(arm.speed.device for arm in report.arms if arm.speed.device and arm.control != "data-only")
    if devices:
        environment = {"device": ", ".join(devices), **environment}
    if environment:
        lines.append("- " + safe(", ".join(f"{key} {value}" for key, value in environment.items())))
    if study.notes:
        lines.append("\n".join(f"- {safe(note)}" for note in study.notes))
    lines.append(
        "`harness report STUDY` rebuilds this page, the pictures and the timeline from the tables under `runs/`."
    )
    return "\n\n".join(lines)


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
