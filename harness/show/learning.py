"""Writes the section "What was learned": validation losses by arm, whether the curves agree, and what passes cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from harness.judge.learning import ArmCurves, CurvesCompared, Learning
from harness.show import choices
from harness.show.as_json import finite
from harness.show.names import ArmNames
from harness.show.tables import NOT_MEASURED, Markdown, safe, table
from harness.show.words import count, listing, number, percent
from trainer.json_types import Json

PICTURE = "loss.png"
ALT = "Training and validation loss by step"
_HEADER = ("arm", "final validation loss", "perplexity", "masked-token accuracy", "steps trained", "passes")


def section(found: Learning | None, pictures: Sequence[str], names: ArmNames) -> str:
    """Return "" if nothing was evaluated."""
    if found is None:
        return ""
    header = [name for name in _HEADER if name != _HEADER[3] or any(arm.accuracy is not None for arm in found.arms)]
    parts = []
    if documents := [arm for arm in found.arms if arm.passes]:
        parts.append(table(header, [_row(arm, len(header), names) for arm in documents]))
    if agreements := [f"- {safe(agreement(_shortened(one, names)))}." for one in found.compared]:
        parts.append("\n".join(agreements))
    if found.other_labels:
        parts.append(
            "The arms are evaluated on other labels (their tokenizer, held-out documents, tokens or objective differ): "
            "a lower loss or perplexity of one is not a better one."
        )
    parts += choices.parts(found, names)
    parts.append(f"{cost(found.arms)}.")
    parts += [f"![{ALT}](plots/{PICTURE})"] if PICTURE in pictures else []
    parts += [f"![{choices.ALT}](plots/{choices.PICTURE})"] if choices.PICTURE in pictures else []
    return "\n\n".join(parts)


def _row(arm: ArmCurves, columns: int, names: ArmNames) -> list[str]:
    perplexity = NOT_MEASURED if arm.perplexity is None else number(arm.perplexity)
    accuracy = [NOT_MEASURED if arm.accuracy is None else percent(arm.accuracy)] if columns == len(_HEADER) else []
    steps = listing([f"{step:,}" for step in arm.final_steps])
    final = NOT_MEASURED if arm.final_loss is None else loss(arm.final_loss)
    return [names.short(arm.arm), final, perplexity, *accuracy, steps, str(arm.passes)]


def loss(value: float) -> str:
    """``4.1234``: losses are compared in their third and fourth decimal."""
    return f"{value:.4f}" if math.isfinite(value) else Markdown("**diverged**")


def _shortened(one: CurvesCompared, names: ArmNames) -> CurvesCompared:
    return replace(one, baseline=names.short(one.baseline), candidate=names.short(one.candidate))


def agreement(one: CurvesCompared) -> str:
    """Whether two arms have the same losses, or where they first differ and by how much."""
    pair = f"{one.candidate} and {one.baseline}"
    seen = f"{one.training:,} training and {one.validation:,} validation losses"
    if not one.training and not one.validation:
        return f"{pair} have no loss at a common step"
    beyond = _beyond(one)
    if (found := one.difference) is None:
        return f"{pair} have identical losses: all {seen} at common steps, in {count(one.blocks, 'block')}{beyond}"
    apart = abs(found.candidate - found.baseline) / abs(found.baseline) if found.baseline else found.largest
    by = f" ({_relative(apart)})" if math.isfinite(apart) else ""
    return (
        f"{pair} have different losses: first the {found.of} loss of step {found.step} (counted from 0) in block "
        f"{found.block}, {_against(found.candidate, found.baseline)}{by}; at most {_relative(found.largest)} "
        f"apart over {seen}{beyond}"
    )


def _beyond(one: CurvesCompared) -> str:
    """What the figures before it leave out."""
    text = f"; {one.not_finite:,} of them NaN or infinite in an arm" if one.not_finite else ""
    for arm, alone in zip((one.baseline, one.candidate), one.alone, strict=True):
        text += f"; {alone:,} more of {arm} at steps that the other has no loss of" if alone else ""
    return text


def _against(one: float, other: float) -> str:
    """Two losses that differ, with as many digits as show it."""
    short = f"{one:.6g}", f"{other:.6g}"
    return " against ".join(short if short[0] != short[1] else (repr(one), repr(other)))


def _relative(fraction: float) -> str:
    return f"{fraction:.1e} of it" if 0 < fraction < 1e-3 else percent(fraction)


def cost(arms: Sequence[ArmCurves]) -> str:
    """What evaluation took: its time is in no step and in no throughput."""
    passes = sum(arm.passes + arm.choice_passes for arm in arms)
    seconds = sum(arm.evaluate_s for arm in arms)
    shares = sorted(arm.share for arm in arms)
    share = percent(shares[0]) if len(arms) == 1 else f"{percent(shares[0])} to {percent(shares[-1])}"
    ahead = any(run.workers for arm in arms for run in arm.runs)
    return (
        f"Evaluation: {passes} pass{'' if passes == 1 else 'es'}, {number(seconds)} s, {share} of the time of steps "
        "and passes together, outside the steps: no throughput counts it"
        + (". Loader workers build batches meanwhile, as far as data.prefetch allows" if ahead else "")
    )


def learning_json(found: Learning) -> Json:
    """What summary.json has of it."""
    return {
        "arms": {
            arm.arm: {
                "validation_loss": finite(arm.final_loss),
                "perplexity": finite(arm.perplexity),
                "masked_token_accuracy": finite(arm.accuracy),
                "steps": list(arm.final_steps),
                "passes": arm.passes,
                "evaluate_s": finite(arm.evaluate_s),
                "share_of_run": finite(arm.share),
                **choices.as_json(arm),
            }
            for arm in found.arms
        },
        "compared": [
            {
                "baseline": one.baseline,
                "candidate": one.candidate,
                "identical": one.difference is None and bool(one.training or one.validation),
                "sentence": agreement(one),
            }
            for one in found.compared
        ],
    }
