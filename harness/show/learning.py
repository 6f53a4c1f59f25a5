"""Writes what the arms learned: validation losses, answers to questions, and how soon a target loss was reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from harness.explain.policy import LOSS_STEPS
from harness.judge.learning import ArmCurves, CurvesCompared, Learning, RightShare, right_share
from harness.judge.losses import Learned
from harness.show.names import ArmNames
from harness.show.tables import NOT_MEASURED, Markdown, estimate_cell, finite, number_cell, record_json, safe, table
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
    parts += choice_parts(found, names)
    parts.append(f"{cost(found.arms)}.")
    parts += [f"![{ALT}](plots/{PICTURE})"] if PICTURE in pictures else []
    parts += [f"![{CHOICES_ALT}](plots/{CHOICES_PICTURE})"] if CHOICES_PICTURE in pictures else []
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
                **choices_json(arm),
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
    """The table and its note; nothing where no question was asked."""
    arms = [arm for arm in found.arms if arm.choice_passes]
    if not arms:
        return []
    header = ["arm", *SHARES.values(), "questions", "steps trained", "passes"]
    other = (
        ["The arms are asked other questions, or in another form: the share of one says nothing of another's."]
        if found.other_questions
        else []
    )
    return [table(header, [_choices_row(arm, names) for arm in arms]), CHOICES_NOTE, *other]


def _choices_row(arm: ArmCurves, names: ArmNames) -> list[str]:
    shares = [_choices_cell(arm, name) for name in SHARES]
    questions = sorted({one.questions or 0 for one in arm.answers})
    steps = sorted({one.step + 1 for one in arm.answers})
    counts = [listing([f"{one:,}" for one in numbers]) for numbers in (questions, steps)]
    return [names.short(arm.arm), *shares, *counts, str(arm.choice_passes)]


def _choices_cell(arm: ArmCurves, name: str) -> str:
    found = right_share(arm.answers, name)
    if found is not None:
        return share_text(found)
    known = all(getattr(one, name) is not None for one in arm.answers)
    return Markdown("**diverged**") if known else NOT_MEASURED


def share_text(found: RightShare) -> str:
    """``31.1 % [30.2 %–32.0 %]``."""
    return f"{100 * found.share:.1f} % [{100 * found.ci_low:.1f} %–{100 * found.ci_high:.1f} %]"


def choices_json(arm: ArmCurves) -> dict[str, Json]:
    """What summary.json has of an arm's answers; nothing where it was asked nothing."""
    if not arm.choice_passes:
        return {}
    shares: dict[str, Json] = {}
    for name in ("acc", "acc_norm", "acc_bytes", "acc_tokens"):
        found = right_share(arm.answers, name)
        shares[name] = None if found is None else record_json(found)
    asked = sorted({one.questions or 0 for one in arm.answers})
    steps = sorted({one.step + 1 for one in arm.answers})
    return {"multiple_choice": {**shares, "questions": [*asked], "steps": [*steps], "passes": arm.choice_passes}}


def target_section(found: Sequence[Learned], names: ArmNames) -> str:
    """The table and its note; empty where the scenario has no target."""
    if not found:
        return ""
    target = f"{found[0].target:g}"
    header = [
        "arm",
        "loss at the end",
        f"steps to {target}",
        "tokens to it",
        "seconds to it",
        "reached by",
        "memory MiB",
    ]
    on_device = any(one.peak_device_bytes is not None for one in found)
    rows = [
        [
            names.short(one.arm),
            _loss_cell(one),
            estimate_cell(one.steps),
            number_cell(one.tokens),
            number_cell(one.seconds),
            _reached_cell(one),
            _mib(one.peak_memory_bytes),
            *([_mib(one.peak_device_bytes)] if on_device else []),
        ]
        for one in found
    ]
    trained = [one.trained_steps for one in found if one.trained_steps is not None]
    after = f" The runs end after {_range(trained)} steps." if trained else ""
    note = (
        f"Medians over the runs [95 % interval]. A loss is the mean over {LOSS_STEPS} training steps, warm-up steps "
        "among them, as they train too; it is that of the batches it trains on, not of a held-out set."
        f"{after} *Steps* (at least {LOSS_STEPS}), *tokens* and *seconds* are medians over all runs: one that did not "
        "come there counts as later than any other, and then there is no interval. Seconds are those of steps alone, "
        f"at the arm's typical one. Memory is the most that a run's processes had resident"
        f"{', and torch on the device' if on_device else ''}."
    )
    return f"{table([*header, *['device MiB'] * on_device], rows)}\n\n{note}"


def _reached_cell(one: Learned) -> str:
    """``5 of 5``, with what takes from it: a loss that falls below the target by chance, or in runs that survived."""
    text = f"{one.reached} of {one.runs}"
    text += f"; {one.left} ended above it again" if one.left else ""
    return text + (f"; {one.failed} more failed" if one.failed else "")


def _loss_cell(one: Learned) -> str:
    if one.diverged:
        return Markdown(f"**diverged** in {one.diverged} of {one.runs}")
    loss = one.loss
    if loss is None:
        return NOT_MEASURED
    if loss.ci_low is None or loss.ci_high is None:
        return f"{loss.median:.3f} [no interval]"
    return f"{loss.median:.3f} [{loss.ci_low:.3f}–{loss.ci_high:.3f}]"


def _mib(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value / 2**20)


def _range(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"
