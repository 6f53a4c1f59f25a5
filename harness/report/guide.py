"""The parts of summary.md that explain: how to read it, and how to get it again."""

from __future__ import annotations

import shlex

from harness.analysis.report_types import StudyReport
from harness.analysis.statistics import RESAMPLES

HOW_TO_READ = f"""## How to read this

- **exposed**: stage time that the step really waited for. **hidden**: stage time that ran while the step did
  something else. **contended**: time the main thread could run but had no core, whoever took it.
- **ceiling**: the largest gain that removing *all* waits for data could give, known before anyone tries. A change to
  the input side cannot beat it, unless hidden work contends; the *ideal data* control checks that by measurement.
- **noise floor**: how far from 1 the interval of an unchanged arm against its own twin reaches. **gain** and **loss**
  are called only where the interval excludes 1 and the median clears the floor; else the sentence says how small a
  difference would have shown.
- **tokens/s** counts positions, padding included; **trained tokens/s** counts those with a label: padding cannot
  flatter it.
- Intervals: medians over blocks, paired within a block (total over its turns; each block sees the documents in another
  order), by a smoothed bootstrap over blocks ({2 * RESAMPLES} resamples) expanded for few blocks. Fewer than 3 blocks
  give none.
- `harness trace STUDY` opens the timeline in Perfetto: phases, worker stages, waits and starvation by cause, counters,
  operators and samples of a window of steps, with an arrow from the worker's batch to the phase that used it."""


def reproduction(report: StudyReport) -> str:
    """The command, the scenario, how arms were interleaved, and what it ran on."""
    study = report.study
    lines = ["## How to reproduce"]
    if study.command:
        lines.append(f"```\n{shlex.join(study.command)}\n```")
    facts = [f"scenario file `{study.scenario_file}`"] if study.scenario_file else []
    facts.append(f"{study.blocks} blocks, interleave: {study.interleave}")
    if study.interleave_reason:
        facts[-1] += f" ({study.interleave_reason})"
    if study.created_utc:
        facts.append(f"started {study.created_utc}" + (f", ended {study.ended_utc}" if study.ended_utc else ""))
    lines.append("\n".join(f"- {fact}" for fact in facts))
    environment = {key: value for key, value in report.environment.items() if value is not None}
    devices = dict.fromkeys(arm.device for arm in report.arms if arm.device and arm.control != "data-only")
    if devices:
        environment = {"device": ", ".join(devices), **environment}
    if environment:
        lines.append("- " + ", ".join(f"{key} {value}" for key, value in environment.items()))
    if study.notes:
        lines.append("\n".join(f"- {note}" for note in study.notes))
    lines.append(
        "`harness report STUDY` rebuilds this page, the pictures and the timeline from the tables under `runs/`."
    )
    return "\n\n".join(lines)
