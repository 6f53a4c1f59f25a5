"""Finds probes that worked on one side of a comparison only: the sides then differ in more than their code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.study.run_data import RunData


def one_sided_problems(runs: Sequence[RunData], baseline: str, candidate: str) -> list[str]:
    """A line for each problem that a probe reported in every run of one arm, and in none of the other."""
    lines = []
    for arm, other in ((baseline, candidate), (candidate, baseline)):
        elsewhere = {text for texts in _problems(runs, other) for text in texts}
        everywhere = set.intersection(*_problems(runs, arm)) if _problems(runs, arm) else set()
        lines += [f"probes: only in the runs of {arm}: {text}" for text in sorted(everywhere - elsewhere)]
    return lines


def _problems(runs: Iterable[RunData], arm: str) -> list[set[str]]:
    return [set(run.probes.problems) for run in runs if run.record.arm == arm and run.record.status == "done"]
