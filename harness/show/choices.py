"""Says how many multiple-choice questions the arms answered right: a table of "What was learned", and its JSON."""

from __future__ import annotations

from harness.explain.choices import RightShare, right_share
from harness.judge.learning import ArmCurves, Learning
from harness.show.as_json import record_json
from harness.show.names import ArmNames
from harness.show.tables import NOT_MEASURED, Markdown, table
from harness.show.words import listing
from trainer.json_types import Json

PICTURE = "multiple-choice.png"
ALT = "Share of multiple-choice questions answered right, by step"
SHARES = {"acc": "acc", "acc_norm": "acc_norm (per character)", "acc_tokens": "per token"}
_NOTE = (
    "The likeliest ending of each question counts as the answer. Shares are of the last pass [95 % interval, of "
    "questions as independent draws], medians over blocks; a guess is right in 25 %. *acc* compares log-likelihoods, "
    "*acc_norm* those by characters of the ending (as lm-evaluation-harness does), *per token* those by its tokens "
    "(what llm.c calls acc_norm)."
)


def parts(found: Learning, names: ArmNames) -> list[str]:
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
    return [table(header, [_row(arm, names) for arm in arms]), _NOTE, *other]


def _row(arm: ArmCurves, names: ArmNames) -> list[str]:
    shares = [_cell(arm, name) for name in SHARES]
    questions = sorted({one.questions or 0 for one in arm.answers})
    steps = sorted({one.step + 1 for one in arm.answers})
    counts = [listing([f"{one:,}" for one in numbers]) for numbers in (questions, steps)]
    return [names.short(arm.arm), *shares, *counts, str(arm.choice_passes)]


def _cell(arm: ArmCurves, name: str) -> str:
    found = right_share(arm.answers, name)
    if found is not None:
        return share(found)
    known = all(getattr(one, name) is not None for one in arm.answers)
    return Markdown("**diverged**") if known else NOT_MEASURED


def share(found: RightShare) -> str:
    """``31.1 % [30.2 %–32.0 %]``."""
    return f"{100 * found.share:.1f} % [{100 * found.ci_low:.1f} %–{100 * found.ci_high:.1f} %]"


def as_json(arm: ArmCurves) -> dict[str, Json]:
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
