"""Writes the answer of ``harness whatif``: a prediction and a sweep, as lines of text and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence

from harness.explain.policy import REPLAY_ERROR_MAX
from harness.explain.replay.prediction import Prediction
from harness.explain.replay.whatif import Sweep
from harness.explain.statistics import Estimate
from harness.judge.doubts import Doubt, DoubtKind
from harness.show.dose import assumption_lines
from harness.show.sweeps import crossing_text, sweep_sentence
from harness.show.tables import doubt_json, estimate_json
from harness.show.text.doubts import doubt_text
from harness.show.words import count, interval, listing, ms, number, percent, ratio, signed_percent
from trainer.json_types import Json

OF_EDITS: tuple[DoubtKind, ...] = ("serial", "contradicted")  # doubts whose ``where`` is the affected edits
# Arms of the study that already have the edits, each with its measured step time in milliseconds.
ValidationArms = Sequence[tuple[str, Estimate]]


def prediction_lines(
    scenario: str, arm: str, p: Prediction, checks: ValidationArms, doubts: Sequence[Doubt] = ()
) -> list[str]:
    """Return the answer of ``harness whatif`` as lines. ``checks``: arms that ran with the edits."""
    edits = f" with {' '.join(p.edits.texts)}" if p.edits.texts else ""
    lines = [f"{arm} of {scenario}, replayed{edits}{', on an emulated device' if p.emulated else ''}"]
    blocks = f"median of {count(len(p.block_ms), 'block')}"
    lines.append(f"measured   {_ms(p.measured_ms)} per step, {blocks}")
    lines.append(f"validation {validation_text(p)}")
    if not p.edits:
        return [*lines, *_doubt_lines(doubts)]
    label = "predicted" if p.validation.within_tolerance else "outside tolerance:"
    basis = "" if p.interval_from == "blocks" else " (interval from replicates, without run-to-run variation)"
    lines.append(
        f"{label:<10} {_ms(p.step_ms)} per step, {blocks}{basis}: {ratio(p.gain.median)} as fast as the unedited replay"
        f"{_interval(p)}"
    )
    if p.tokens_per_s is not None:
        ranks = p.edits.ranks or 1
        per_rank = f" over {ranks} ranks, {number(p.tokens_per_s.median / ranks)} each" if ranks > 1 else ""
        lines.append(f"           {_span(p.tokens_per_s)} tokens/s{per_rank}")
    subject = "device idle while waiting for" if p.starved_ms is not None else "step waits for"
    stages = [stage for stage in p.waits_ms if max(p.waits_ms[stage], p.was_waits_ms[stage]) >= 0.005]
    changes = [f"{stage} {number(p.was_waits_ms[stage])} -> {number(p.waits_ms[stage])} ms" for stage in stages]
    lines.append(f"why        {subject} {', '.join(changes) or 'nothing'}")
    if p.starved_ms is not None and p.unedited_starved_ms is not None:
        lines.append(f"           device idle in all {number(p.unedited_starved_ms)} -> {ms(p.starved_ms)} a step")
    for name, value in checks:
        error = p.step_ms.median / value.median - 1
        direction = "more" if error > 0 else "less"
        blocks_text = f"median of {count(value.n, 'block')}"
        lines.append(
            f"checked by {name} measured {_ms(value)}, {blocks_text}: the prediction is {percent(error)} {direction}"
        )
    lines += _doubt_lines(doubts)
    lines += [f"assumes    {text}" for text in assumption_lines(p.assumptions)]
    return lines


def _doubt_lines(doubts: Sequence[Doubt]) -> list[str]:
    """Return a line for each distinct doubt, with the edits that it concerns."""
    edits_by_text: dict[str, list[str]] = {}
    for doubt in doubts:
        edits_by_text.setdefault(doubt_text(doubt), []).extend(
            [doubt.where] if doubt.where and doubt.kind in OF_EDITS else []
        )
    return [f"doubt      {f'{listing(edits)}: ' if edits else ''}{text}" for text, edits in edits_by_text.items()]


def validation_text(prediction: Prediction) -> str:
    """Return a clause on the error of the unedited replay, with a warning above :data:`REPLAY_ERROR_MAX`."""
    errors = prediction.validation
    text = (
        f"the unedited replay is {signed_percent(errors.median)} off (worst {signed_percent(errors.worst)} of "
        f"{count(len(errors.errors), 'block')}; resampled {signed_percent(errors.resampled_median)})"
    )
    if errors.within_tolerance:
        return text
    return f"{text}: more than {percent(REPLAY_ERROR_MAX)}, so do not rely on this prediction"


def sweep_lines(sweep: Sweep, checks: Sequence[ValidationArms]) -> list[str]:
    """Return a row per swept value, and a sentence on the crossover. ``checks``: per value, arms that ran with it."""
    header = [sweep.key, "step ms", "tokenize=0 ms", "tokenization costs", *(["measured ms"] if any(checks) else [])]
    rows = [header]
    points = zip(sweep.texts, sweep.recorded, sweep.without, sweep.shares, checks, strict=True)
    for text, full, free, share, arms in points:
        measured = ", ".join(f"{number(value.median)} by {name}" for name, value in arms)
        rows.append(
            [
                text,
                number(full.step_ms.median),
                number(free.step_ms.median),
                percent(max(0.0, share)),
                *([measured] if any(checks) else []),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return ["Milliseconds are medians of blocks.", *aligned, sweep_sentence(sweep)]


def answer_json(
    scenario: str, arm: str, prediction: Prediction, checks: ValidationArms, doubts: Sequence[Doubt] = ()
) -> dict[str, Json]:
    """Return the JSON output of ``harness whatif``. ``checks``: arms that ran with the edits."""
    return {
        "scenario": scenario,
        "arm": arm,
        **prediction_json(prediction),
        "beside": _arms_json(checks),
        "doubts": [doubt_json(doubt) for doubt in doubts],
    }


def sweep_json(sweep: Sweep, checks: Sequence[ValidationArms], picture: str) -> dict[str, Json]:
    points = zip(sweep.texts, sweep.recorded, sweep.without, checks, strict=True)
    return {
        "key": sweep.key,
        "points": [
            {
                "value": text,
                "recorded": prediction_json(full),
                "without_tokenization": prediction_json(free),
                "beside": _arms_json(arms),
            }
            for text, full, free, arms in points
        ],
        "crossings": [{"at": crossing.at, "text": crossing_text(sweep, crossing)} for crossing in sweep.crossings],
        "sentence": sweep_sentence(sweep),
        "picture": picture,
    }


def prediction_json(p: Prediction) -> dict[str, Json]:
    return {
        "edits": list(p.edits.texts),
        "emulated": p.emulated,
        "measured_ms": estimate_json(p.measured_ms),
        "step_ms": estimate_json(p.step_ms),
        "tokens_per_s": estimate_json(p.tokens_per_s),
        "ratio": estimate_json(p.ratio),
        "speedup": estimate_json(p.speedup),
        "gain": estimate_json(p.gain),
        "interval_from": p.interval_from,
        "licence": {
            "granted": p.validation.within_tolerance,
            "median": p.validation.median,
            "worst": p.validation.worst,
            "resampled_median": p.validation.resampled_median,
            "by_block": {str(block): error for block, error in p.validation.errors.items()},
        },
        "waits_ms": dict(p.waits_ms),
        "unedited_waits_ms": dict(p.was_waits_ms),
        "starved_ms": p.starved_ms,
        "unedited_starved_ms": p.unedited_starved_ms,
        "assumptions": assumption_lines(p.assumptions),
    }


def _arms_json(arms: ValidationArms) -> list[Json]:
    return [{"arm": name, "step_ms": estimate_json(value)} for name, value in arms]


def _interval(p: Prediction) -> str:
    gain = p.over_blocks(p.gain)
    return f" ({interval(gain)})" if gain.ci_low is not None and gain.ci_high is not None else ""


def _span(value: Estimate) -> str:
    if value.ci_low is None or value.ci_high is None:
        return number(value.median)
    return f"{number(value.median)} ({number(value.ci_low)} to {number(value.ci_high)})"


def _ms(value: Estimate) -> str:
    if value.ci_low is None or value.ci_high is None:
        return ms(value.median)
    return f"{ms(value.median)} ({number(value.ci_low)} to {number(value.ci_high)})"
