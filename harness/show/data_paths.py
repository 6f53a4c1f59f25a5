"""The two tables of data paths, alone and in training, for scenarios with an ``isolated_baseline``."""

from __future__ import annotations

from collections.abc import Sequence

from harness.explain.statistics import Estimate
from harness.judge.data_paths import DataPath
from harness.show.names import ArmNames, without_point
from harness.show.sentences import steps_text
from harness.show.tables import NOT_MEASURED, estimate_cell, number_cell, ratio_cell, safe, table
from harness.show.words import ms, number, part_of, ratio


def section(found: Sequence[DataPath], names: ArmNames) -> str:
    """Both tables, each with its note; empty where the scenario does not ask for them."""
    if not found:
        return ""
    baselines = list(dict.fromkeys(one.baseline for one in found))
    against = names.short(baselines[0]) if len(baselines) == 1 else without_point(baselines[0])
    alone = [
        [
            names.short(one.arm),
            _sample_cell(one.sample_ms),
            estimate_cell(one.tokens_per_s),
            estimate_cell(one.trained_tokens_per_s),
            ratio_cell(one.times),
        ]
        for one in found
    ]
    training = [
        [
            names.short(one.arm),
            estimate_cell(one.step_ms),
            number_cell(one.waited_ms),
            ratio_cell(one.times),
            ratio_cell(one.training_times),
        ]
        for one in found
    ]
    measures = " or ".join(dict.fromkeys(one.measure for one in found if one.measure))
    point = " at the same point of the matrix" if len(baselines) > 1 else ""
    return "\n\n".join(
        [
            *(f"{safe(line)}" for line in _findings(found, names)),
            table(["arm", "ms a sample", "tokens/s", "trained tokens/s", f"times as fast as {against}"], alone),
            "Medians over the blocks of the data-only controls [95 % interval]. A sample is a row of a batch with its "
            f"padding, which tokens/s and the ratio to {safe(against)}{point} count too.{_loop_note(found)}",
            "What it is worth in training:",
            table(["arm", "step ms (median of blocks)", "waits for data, ms a step", "alone", "in training"], training),
            f"*alone* and *in training*: times as fast as {safe(against)}{point}"
            f"{f', in training by {measures}' if measures else ''}.",
        ]
    )


def _findings(found: Sequence[DataPath], names: ArmNames) -> list[str]:
    """The fastest path alone, and what is left of that in training, at each baseline."""
    lines = []
    for baseline in dict.fromkeys(one.baseline for one in found):
        paths = [one for one in found if one.baseline == baseline and one.arm != baseline and one.times is not None]
        if not paths:
            continue
        best = max(paths, key=lambda one: one.times.median if one.times is not None else 0.0)
        assert best.times is not None
        line = f"Alone {names.short(best.arm)} is {ratio(best.times.median)} as fast as {names.short(baseline)}"
        base = next((one for one in found if one.arm == baseline), None)
        if base is not None and base.mean_step_ms is not None and base.waited_ms is not None:
            part = part_of(base.mean_step_ms)
            waits = f"{part(base.waited_ms)} of its {part(base.mean_step_ms)} a step"
            line += f"; data costs {names.short(baseline)} {waits}"
        if (trained_with := steps_text(best.step_time, best.steps)) is not None:
            line += f"; trained with, {trained_with}"
        if best.training_times is not None:  # what a step holds counts in it, too: padding is no data work
            line += f"; by {best.measure}, which count what a step holds, {ratio(best.training_times.median)}"
        lines.append(f"{line}.")
    return lines


def _loop_note(found: Sequence[DataPath]) -> str:
    """How much of the steps alone is no data path: it hides how fast the fastest are."""
    known = [one.loop_ms for one in found if one.loop_ms is not None]
    if not known:
        return ""
    span = ms(max(known)) if min(known) == max(known) else f"{ms(min(known))} to {ms(max(known))}"
    return (
        f" Of each step alone {span} are the loop around the data path, the ledger's marks among it: a path that takes "
        "as long or less is faster than its figures here."
    )


def _sample_cell(sample: Estimate | None) -> str:
    if sample is None:
        return NOT_MEASURED
    if sample.ci_low is None or sample.ci_high is None:
        return f"{_digits(sample.median)} [no interval]"
    return f"{_digits(sample.median)} [{_digits(sample.ci_low)}–{_digits(sample.ci_high)}]"


def _digits(value: float) -> str:
    """Three significant digits also of what is far below 1: ``0.00412``."""
    return number(value) if value >= 1 else f"{value:.5f}" if value < 0.01 else f"{value:.3f}"
