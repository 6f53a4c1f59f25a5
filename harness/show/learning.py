"""Reports the results of training: validation losses, answers to questions, and the time to reach a target loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from harness.explain.policy import LOSS_STEPS
from harness.judge.learning import ArmCurves, CurvesCompared, Learning, right_share
from harness.judge.losses import Learned
from harness.show.names import ArmNames
from harness.show.tables import (
    NOT_MEASURED,
    Markdown,
    bulleted,
    cell,
    column_table,
    estimate_cell,
    finite,
    interval_cell,
    number_cell,
    percent_cell,
    record_json,
    safe,
)
from harness.show.words import count, listing, number, percent
from trainer.json_types import Json

PICTURE = "loss.png"
ALT = "Training and validation loss by step"


def section(found: Learning | None, pictures: Sequence[str], names: ArmNames) -> str:
    """Return Markdown on validation losses and answers; "" for None. ``pictures``: names of the drawn ones."""
    if found is None:
        return ""
    parts = []
    if documents := [arm for arm in found.arms if arm.passes]:
        parts.append(_losses(documents, names))
    if agreements := [f"{safe(agreement(_shortened(pair, names)))}." for pair in found.compared]:
        parts.append(bulleted(agreements))
    if found.other_labels:
        parts.append(
            "The arms are evaluated on different labels (their tokenizer, held-out documents, tokens or objective "
            "differ): their losses and perplexities cannot be compared."
        )
    parts += [*choice_parts(found, names), f"{cost(found.arms)}."]
    drawn = {PICTURE: ALT, CHOICES_PICTURE: CHOICES_ALT}
    parts += [f"![{alt}](plots/{name})" for name, alt in drawn.items() if name in pictures]
    return "\n\n".join(parts)


def _losses(arms: Sequence[ArmCurves], names: ArmNames) -> str:
    columns: dict[str, Callable[[ArmCurves], str]] = {
        "arm": lambda arm: names.short(arm.arm),
        "final validation loss": lambda arm: cell(arm.final_loss, loss),
        "perplexity": lambda arm: number_cell(arm.perplexity),
        "masked-token accuracy": lambda arm: percent_cell(arm.accuracy),
        "steps trained": lambda arm: listing([f"{step:,}" for step in arm.final_steps]),
        "passes": lambda arm: str(arm.passes),
    }
    if all(arm.accuracy is None for arm in arms):
        del columns["masked-token accuracy"]
    return column_table(arms, columns)


def loss(value: float) -> str:
    """Format a loss with four decimals; NaN and infinity as **diverged**."""
    return f"{value:.4f}" if math.isfinite(value) else Markdown("**diverged**")


def _shortened(one: CurvesCompared, names: ArmNames) -> CurvesCompared:
    return replace(one, baseline=names.short(one.baseline), candidate=names.short(one.candidate))


def agreement(one: CurvesCompared) -> str:
    """Return a clause that two arms have identical losses, or where these first differ and by how much at most."""
    pair = f"{one.candidate} and {one.baseline}"
    numbers = f"{one.training:,} training and {one.validation:,} validation losses"
    if not one.training and not one.validation:
        return f"{pair} have no loss at a common step"
    unmatched = _beyond(one)
    if (difference := one.difference) is None:
        return (
            f"{pair} have identical losses: all {numbers} at common steps, in {count(one.blocks, 'block')}{unmatched}"
        )
    relative = (
        abs(difference.candidate - difference.baseline) / abs(difference.baseline)
        if difference.baseline
        else difference.largest
    )
    amount = f" ({_relative(relative)})" if math.isfinite(relative) else ""
    return (
        f"{pair} have different losses: first the {difference.of} loss of step {difference.step} (counted from 0) in "
        f"block {difference.block}, {_against(difference.candidate, difference.baseline)}{amount}; at most "
        f"{_relative(difference.largest)} apart over {numbers}{unmatched}"
    )


def _beyond(one: CurvesCompared) -> str:
    """Return clauses on losses that the comparison leaves out (NaN, infinite, of one arm alone); else ""."""
    text = f"; {one.not_finite:,} of them NaN or infinite in an arm" if one.not_finite else ""
    for arm, losses in zip((one.baseline, one.candidate), one.alone, strict=True):
        text += f"; {losses:,} more of {arm} at steps that the other has no loss of" if losses else ""
    return text


def _against(one: float, other: float) -> str:
    """Format two different losses as ``2.31 against 2.32``, with enough digits to show the difference."""
    short = f"{one:.6g}", f"{other:.6g}"
    return " against ".join(short if short[0] != short[1] else (repr(one), repr(other)))


def _relative(fraction: float) -> str:
    return f"{fraction:.1e} of it" if 0 < fraction < 1e-3 else percent(fraction)


def cost(arms: Sequence[ArmCurves]) -> str:
    """Return a sentence on the evaluation passes of all ``arms``: number, seconds, share of the time with steps."""
    passes = sum(arm.passes + arm.choice_passes for arm in arms)
    seconds = sum(arm.evaluate_s for arm in arms)
    shares = sorted(arm.share for arm in arms)
    share = percent(shares[0]) if len(arms) == 1 else f"{percent(shares[0])} to {percent(shares[-1])}"
    return (
        f"Evaluation: {passes} pass{'' if passes == 1 else 'es'}, {number(seconds)} s, {share} of the time of steps "
        "and passes together, outside the steps: no throughput includes it"
    )


def learning_json(found: Learning) -> Json:
    """Return the section of summary.json on validation losses, answers, and the comparison of losses."""
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
                **choices_json(arm),
            }
            for arm in found.arms
        },
        "compared": [
            {
                "baseline": pair.baseline,
                "candidate": pair.candidate,
                "identical": pair.difference is None and bool(pair.training or pair.validation),
                "sentence": agreement(pair),
            }
            for pair in found.compared
        ],
    }


CHOICES_PICTURE = "multiple-choice.png"
CHOICES_ALT = "Share of multiple-choice questions answered right, by step"
SHARES = {"acc": "acc", "acc_norm": "acc_norm (per character)", "acc_tokens": "per token"}
CHOICES_NOTE = (
    "The likeliest ending of each question counts as the answer. Shares are of the last pass [95 % interval, of "
    "questions as independent draws], medians over blocks; a guess is right in 25 %. *acc* compares log-likelihoods, "
    "*acc_norm* those by characters of the ending (as lm-evaluation-harness does), *per token* those by its tokens "
    "(what llm.c calls acc_norm)."
)


def choice_parts(found: Learning, names: ArmNames) -> list[str]:
    """Return the table of multiple-choice results and its notes; empty if no arm answered questions."""
    arms = [arm for arm in found.arms if arm.choice_passes]
    if not arms:
        return []
    shares: dict[str, Callable[[ArmCurves], str]] = {
        title: partial(_choices_cell, name=name) for name, title in SHARES.items()
    }
    shown = column_table(arms, {
        "arm": lambda arm: names.short(arm.arm),
        **shares,
        "questions": lambda arm: listing([f"{questions:,}" for questions in _asked(arm)[0]]),
        "steps trained": lambda arm: listing([f"{steps:,}" for steps in _asked(arm)[1]]),
        "passes": lambda arm: str(arm.choice_passes),
    })  # fmt: skip
    note = "The arms answer different questions, or in a different form: their shares cannot be compared."
    return [shown, CHOICES_NOTE, *([note] if found.other_questions else [])]


def _asked(arm: ArmCurves) -> tuple[list[int], list[int]]:
    """Return the numbers of questions (0: unknown), and of trained steps, of the last passes, sorted."""
    return sorted({choice.questions or 0 for choice in arm.answers}), sorted(
        {choice.step + 1 for choice in arm.answers}
    )


def _choices_cell(arm: ArmCurves, name: str) -> str:
    share = right_share(arm.answers, name)
    if share is not None:
        return f"{100 * share.share:.1f} % [{100 * share.ci_low:.1f} %–{100 * share.ci_high:.1f} %]"
    measured = all(getattr(choice, name) is not None for choice in arm.answers)
    return Markdown("**diverged**") if measured else NOT_MEASURED


def choices_json(arm: ArmCurves) -> dict[str, Json]:
    """Return ``{"multiple_choice": …}`` with the arm's shares of right answers; {} if it answered no questions."""
    if not arm.choice_passes:
        return {}
    right_shares = {name: right_share(arm.answers, name) for name in ("acc", "acc_norm", "acc_bytes", "acc_tokens")}
    shares: dict[str, Json] = {
        name: None if share is None else record_json(share) for name, share in right_shares.items()
    }
    questions, steps = _asked(arm)
    return {"multiple_choice": {**shares, "questions": [*questions], "steps": [*steps], "passes": arm.choice_passes}}


def target_section(found: Sequence[Learned], names: ArmNames) -> str:
    """Return the table of steps, tokens and seconds to the target loss, with its note; "" without a target loss."""
    if not found:
        return ""
    target = f"{found[0].target:g}"
    columns: dict[str, Callable[[Learned], str]] = {
        "arm": lambda arm: names.short(arm.arm),
        "loss at the end": lambda arm: (
            Markdown(f"**diverged** in {arm.diverged} of {arm.runs}")
            if arm.diverged
            else interval_cell(arm.loss, "{:.3f}".format)
        ),
        f"steps to {target}": lambda arm: estimate_cell(arm.steps),
        "tokens to it": lambda arm: number_cell(arm.tokens),
        "seconds to it": lambda arm: number_cell(arm.seconds),
        "reached by": _reached_cell,
        "memory MiB": lambda arm: number_cell(arm.peak_memory_bytes, 2**20),
    }
    on_device = any(arm.peak_device_bytes is not None for arm in found)
    if on_device:
        columns["device MiB"] = lambda arm: number_cell(arm.peak_device_bytes, 2**20)
    trained = sorted({arm.trained_steps for arm in found if arm.trained_steps is not None})
    end_note = (
        f" The runs end after {' to '.join(map(str, dict.fromkeys([trained[0], trained[-1]])))} steps."
        if trained
        else ""
    )
    note = (
        f"Medians over the runs [95 % interval]. A loss is the mean over {LOSS_STEPS} training steps, warm-up steps "
        "among them, as they train too; it is that of the batches it trains on, not of a held-out set."
        f"{end_note} *Steps* (at least {LOSS_STEPS}), *tokens* and *seconds* are medians over all runs: one that did "
        "not reach it counts as the latest, and then there is no interval. Seconds are those of steps alone, at the "
        "arm's typical one. Memory is the most that a run's processes had "
        f"resident{', and torch on the device' if on_device else ''}."
    )
    return f"{column_table(found, columns)}\n\n{note}"


def _reached_cell(one: Learned) -> str:
    """Format ``5 of 5``: runs that reached the target loss; adds failed runs and those that ended above it again."""
    text = f"{one.reached} of {one.runs}"
    text += f"; {one.left} ended above it again" if one.left else ""
    return text + (f"; {one.failed} more failed" if one.failed else "")
